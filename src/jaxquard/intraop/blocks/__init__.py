"""Parallel blocks (CFP, sections 3.1 to 3.3, algorithm 1).

In: a `TracedStep`.
Out: for every `Block` its contractions, equations and choices, and for every equation of the forward, the backward and
the update the block that owns it. Which dims can be sharded together follows from `ir.dependence` (equation 2).
"""
