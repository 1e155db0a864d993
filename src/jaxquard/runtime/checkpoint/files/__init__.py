"""A checkpoint on disk: its folders, its manifest, and the pieces of its arrays. Knows nothing of actors.

In: arrays of this process, or boxes of leaves that are wanted. Out: pieces on disk, or arrays on devices. `manifest`
says what a checkpoint holds and in which pieces (`leaf_records`), with their `digests`; `write_pieces` and
`read_pieces` go between memory and disk, through `orbax_files`; `folders` makes one appear whole or not at all.
"""
