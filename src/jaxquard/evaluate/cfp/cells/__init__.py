"""Cells of CFP's evaluation (section 5.1): what is run, what came out, which cells a figure takes.

In: models, sizes and meshes of the paper, at our scale or its own. Out: `CellSpec`, `Cell`, the file of results.
"""
