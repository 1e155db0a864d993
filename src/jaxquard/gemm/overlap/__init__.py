"""Overlap of communication and compute in programs compiled for TPUs that are not here (design decisions 7 and 10).

In: a product, an algorithm, and the name of a TPU topology; libtpu compiles it.
Out: the number of transfers that could run beside a product, and of those that do in the compiler's schedule.
"""
