"""Evaluations and predictions under the plan of a step: its forward, or that of another function, on its actors.

In: the step under its plan, or a function and where the plan keeps the parameters. Out: a `PartialStep` for
`RemoteMesh.distributed`, which reads some leaves of the state and gives none back.
"""
