"""Costs of a step's segments for the assignment of stages: seconds and bytes of every strategy on an actor's mesh.

In: the `Analysis` of a step on one microbatch, a `RooflinePricer`, and any other `Pricer`. Out: `StepCosts`, whose
`SegmentCosts` the stages are made of, for each storage of state and each kind of recomputation; the FLOPs of a step.
"""
