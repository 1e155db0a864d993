"""The product that an algorithm executes and the cost model prices (MeshSlice, sections 2.2, 2.3.1 and 3.2.1).

In: a dataflow, the axes of a mesh, the layout of the matrices and their sizes. Out: a `Product` and a `SizedProduct`,
with the direction in which each matrix moves; the three products of a layer (Table 1); the mesh and the shardings of
whole matrices on it. Nothing here moves or multiplies.
"""
