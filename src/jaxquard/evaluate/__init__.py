"""The papers' tables and figures, redone: one paper a folder, one figure or table a file.

In: measured cells (CFP) or closed forms and simulations (MeshSlice), and the numbers that the papers publish.
Out: a page with the paper's results beside ours, and the same numbers as JSON. `common` holds what the papers share.
"""
