"""The traced step and its state (CFP, section 3, figure 3: the model as a computation graph).

In: the user's training step and the types of its arguments.
Out: a `TracedStep`: one flat jaxpr with calls, checkpoints and scans over layers opened, every argument named, and the
arguments paired with the results that replace them in the next step.
"""
