"""Configurations of a plan: actors, mesh, microbatches, schedule and recomputation, and the search over all of them.

In: the costs of a step under each, and bounds. Out: the fastest as they play, with the alternatives to each part.
"""
