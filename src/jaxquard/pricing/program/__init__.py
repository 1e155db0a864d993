"""Programs to price: a jaxpr with its shardings on a mesh, as StableHLO, with a key that no other program has.

In: a jaxpr and the specs of its inputs, outputs and some inner values (`ShardedProgram`).
Out: a lowered program, and fingerprints that are the same in every process.
"""
