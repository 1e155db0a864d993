"""MeshSlice's output-stationary product as one Pallas kernel for TPUs: remote DMAs beside the MXU (section 3.1).

In: the shards of one chip, inside `shard_map`, a `Product` and the options. Out: the chip's shard of the result.
`output_stationary` has the kernel and its call, `ring_gather` the all-gather of one matrix in steps that the kernel
issues between its tiles, `tiles` the tiles of a slice's product and the VMEM that they take; `check_kernel` refuses
what the kernel cannot do. Pallas takes long to import, so `output_stationary` is imported where a product asks for it.
"""
