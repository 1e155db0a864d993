"""The price of a product in closed form and by simulation (MeshSlice, sections 3.2.2 and 4.2).

In: a product's sizes and dataflow, a mesh shape, an algorithm with its options, and a `Cluster`.
Out: a `GemmCost`: seconds of compute and of communication, hidden or not; or a timeline that the simulator plays.
"""
