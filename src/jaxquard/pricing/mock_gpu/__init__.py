"""Prices from one GPU that stands in for many: computation measured, communication modelled (design decision 8).

In: programs with shardings on a mesh, and the cluster whose links the collectives use.
Out: a `Price` for each, which says what was measured and what was modelled (`MockGpuPricer`).
A process with the GPU compiles and runs (`mock_process`, `mock_worker`); all else needs no GPU.
"""
