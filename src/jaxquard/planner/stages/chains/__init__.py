"""A chain of segments divided into stages: runs that may be a stage, their choices, and the search over them.

In: the costs of segments, a schedule's profile, the time of transfers and a limit of memory. Out: the options of each
stage that together take the shortest estimated time.
"""
