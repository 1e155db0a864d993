"""Figures 9 to 15 and Tables 2 and 3 of MeshSlice, one a file.

In: a tuner and a cluster. Out: the numbers of a figure or table.
"""
