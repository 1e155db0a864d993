"""The step of a plan: traced on one microbatch before the search, and rewritten by what the search found.

In: a loss and an optimizer, or a step with `accumulate_grads(fn, AUTO)`; a `Plan`. Out: a `TracedStep` of one
microbatch, the places where stages may begin, and a function for `RemoteMesh.distributed`.
"""
