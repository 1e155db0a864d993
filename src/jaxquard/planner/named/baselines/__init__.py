"""The plans that people would write by hand, priced as ours is.

In: a step and our strategy for it. Out: `PlanBaseline`s: data parallel, FSDP, Megatron's rules, the best single axis,
and the published configurations of the model (published.toml) with their sources.
"""
