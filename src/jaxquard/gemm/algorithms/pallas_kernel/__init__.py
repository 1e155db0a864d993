"""MeshSlice's output-stationary product as one Pallas kernel for TPUs: remote DMAs beside the MXU.

    output_stationary   the kernel, and its call on the shards of a chip
    ring_gather         the all-gather of one matrix's slices, in steps that the kernel issues between its tiles
    tiles               the tiles of a slice's product, and the VMEM that they take
    check_kernel        refuses what the kernel cannot do

Pallas takes long to import, so `output_stationary` is imported where a product asks for it, not before.
"""
