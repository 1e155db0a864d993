"""The table and the figures of JaxPP's evaluation, one a file.

In: a `StepSimulator` and the paper's configurations. Out: rows and points, each with our numbers.
"""
