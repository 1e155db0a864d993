"""The setup of MeshSlice's evaluation (section 4).

In: the paper's models and constants. Out: problems, sets of constants, and the tuner that the figures share.
"""
