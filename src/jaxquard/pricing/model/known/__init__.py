"""Published transformers by name.

In: a name as publications write it. Out: a `Transformer`, or sizes that fit a number of parameters.
"""
