"""Runs of cells: the search, then whole steps under its plan and others.

In: a `CellSpec`, and a `CellBackend` that measures here or prices for a cluster. Out: a `Cell` with what was predicted,
and what whole steps take.
"""
