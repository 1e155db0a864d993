"""The page of MeshSlice (sections 5 and 7).

In: a `Reproduction`. Out: one HTML page with the paper's results beside ours, and the numbers as JSON.
"""
