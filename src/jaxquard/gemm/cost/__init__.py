"""The price of a product in closed form and by simulation (MeshSlice, sections 3.2.2 and 4.2).

In: a `SizedProduct`, a mesh shape, an algorithm with its `AlgorithmOptions`, and a `Cluster`.
Out: a `GemmCost`: seconds of compute and of communication, hidden or not; or a timeline that the simulator plays.
"""
