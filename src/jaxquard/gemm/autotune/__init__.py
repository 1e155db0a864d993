"""The autotuner (MeshSlice, section 3.2): dataflow of each layer, mesh shape, slice counts.

In: a `GemmProblem` (the fully connected layers of a model), a cluster and a number of chips.
Out: a `Tuning`: the `GemmPlan` with the lowest price, and the ranked table that it was chosen from.
"""
