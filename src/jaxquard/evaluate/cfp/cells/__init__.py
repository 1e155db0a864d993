"""Cells of CFP's evaluation (section 5.1): what is run, what came out, which cells a figure takes.

In: models, sizes and meshes of the paper, at our scale. Out: `CellSpec`, `Cell` and the file of results; plain data.
"""
