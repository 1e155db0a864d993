"""A step of the paper as the simulator takes it.

In: a row of Table 1 or a point of a figure, and what the paper leaves open (`Assumptions`).
Out: a `SimulatedStep` with its time, its bubble, its memory and what it recomputes (`StepSimulator`).
"""
