"""Prices of sharded programs in closed form: no compiler, no device, milliseconds a program.

In: a `ShardedProgram`, a cluster and a mesh. Out: the `Price` of the program, and the seconds of each kernel and
collective of it (`ProgramCost`). `prepare` reads the jaxpr once for all shardings, `partition` decides how each
equation is sharded and what moves, `kernel_times` and `mesh_times` have the cluster's figures.
"""
