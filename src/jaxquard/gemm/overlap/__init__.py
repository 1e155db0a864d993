"""Overlap of communication and compute in programs compiled for TPUs that are not here (design decisions 7 and 10).

In: a product, an algorithm, and the name of a TPU topology; libtpu compiles it.
Out: how many of the transfers that could run beside a product do so in the compiler's schedule.
"""
