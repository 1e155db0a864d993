"""The prices of a step on a mesh as plain data, and their tables in the price cache.

In: a step's strategies with their prices (`prices`). Out: `MeshPrices`, with all that a search and the description of a
plan need: segments, names of blocks, known recipes, and `StepCosts` for every storage of state and recomputation.
"""
