"""Cells: what is run, what came out, and which cells a figure takes; plain data alone."""
