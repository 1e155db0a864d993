"""Sharding inside an actor (CFP): from a plain training step to the fastest plan that fits in memory.

In: a step, a mesh, a pricer and a memory limit. Out: a `ShardingPlan`, which `plan.search_sharding` finds. A folder is
a stage of the paper, in the order in which a step passes through them: `step`, `blocks`, `segments`, `shardings`,
`search`, `plan`. A folder imports only those before it.
"""
