"""Segments: runs of blocks that recur, priced once and used everywhere (CFP, section 4.1).

In: the blocks of a step and the owners of its equations.
Out: an `Analysis`: blocks, segments, and the values that cross segment boundaries; and the strategies of each segment.
"""
