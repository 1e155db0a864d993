"""Figures 1 and 7 to 14 of CFP, one a file.

In: the cells that ran. Out: the numbers of a figure, and its drawing.
"""
