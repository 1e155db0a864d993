"""Plans: priced, searched, chosen, saved and applied (CFP, sections 4.2 to 4.4).

In: a training step, a mesh, a pricer and a memory limit (`search_sharding`).
Out: a `ShardingPlan`: the choice of every block with its price, that can be saved, loaded, and applied to the step.
"""
