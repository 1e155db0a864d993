"""Runs of cells: the search, then whole steps under its plan and others.

In: a `CellSpec`. Out: a `Cell` with what was predicted and measured.
"""
