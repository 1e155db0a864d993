"""`jaxquard demo`: a small GPT trained as a pipeline.

In: a schedule and the numbers of actors, microbatches and steps. Out: the losses beside those of the same step in one
jit, a drawing of the last step, and its timeline for Perfetto; code 1 if the losses differ.
"""
