"""Prices from the compiler of a target that need not be here: its scheduled program, walked on a cluster's figures.

In: a `ShardedProgram` and a `Cluster`. Out: its `Price`, and the `WalkedProgram` behind it: timeline and collectives.
"""
