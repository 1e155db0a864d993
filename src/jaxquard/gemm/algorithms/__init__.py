"""Distributed matrix products, one algorithm a file (MeshSlice, sections 2.3, 3.1 and 4.3).

In: the shards of two matrices on a chip, inside `shard_map`; a `Product` (dataflow, mesh axes, layout) and the
`AlgorithmOptions`. Out: the shard of their product. `multiply` takes whole arrays, `registry` has the algorithms by
name; `products/` describes a product and its sizes, `transfers/` moves shards along the rings of a mesh.
"""
