"""The page of MeshSlice: its figures, tables, headlines and claims beside ours, as HTML and as JSON."""
