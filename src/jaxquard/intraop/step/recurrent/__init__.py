"""Loops over time.

In: the flat jaxpr of a step, whose scans over layers are open.
Out: the same step, in which the backward of other scans leaves the sums of weight gradients to one product behind the
loop (`sum_after_loop`).
"""
