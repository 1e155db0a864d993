"""Figures 9 to 15 and Tables 2 and 3 of MeshSlice, one a file, as numbers."""
