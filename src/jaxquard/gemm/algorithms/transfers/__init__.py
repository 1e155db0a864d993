"""Transfers along a ring of chips, which the algorithms share (MeshSlice, sections 2.3.3 and 2.3.4, Figure 3).

In: the shard or the partial sum of one chip, inside `shard_map`, and the mesh axes that make the ring. Out: the
gathered, scattered, shifted, broadcast or reduced one. `rings` has the collectives and Wang's streams,
`ring_broadcast` SUMMA's packets, `ring_streams` a reduce-scatter step by step.
"""
