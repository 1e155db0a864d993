"""The speed of kernels by their shape.

In: the chip of a `Cluster`, and the sizes of a product, of attention, or of a pass over memory.
Out: a `ChipProfile` (chips.toml has the figures with their sources), and seconds.
"""
