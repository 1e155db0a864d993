"""Fused products: queries, keys and values of one weight, or gate and up.

In: the flat jaxpr of a step.
Out: the same step, in which the parts of such a product have a dim of their own (`separate_parts`), so that what is in
them can be sharded.
"""
