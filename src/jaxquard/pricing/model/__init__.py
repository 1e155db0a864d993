"""The model pricer: a transformer's training step in closed form, for clusters that nothing here can compile for.

In: a `Transformer`, a `Parallelism`, a `Cluster` and a `SystemProfile` (the constants of a training framework).
Out: `StagePrices` (seconds and bytes of each stage), a `StepPrice` (the whole step, by what its time and memory go to).
Each product is priced by its own shape; no constant belongs to a configuration.
"""
