"""MeshSlice's slices and the forms that multiply them (MeshSlice, section 3.1).

In: the shards of one chip, inside `shard_map`, a `Product` and the options. Out: the chip's shard of the result.
`blocked_slices` takes slices out of a shard and puts them back, `slice_loop` runs them unrolled or in a loop, `plain`
multiplies each slice at once, `split` in parts for a TPU's compiler; `split_work` counts what the split costs.
"""
