"""Segments to stages: which segments an actor runs, and under which strategies, by numbers alone.

In: the costs of every strategy of every segment for one microbatch (`SegmentCosts`), and a configuration of actors,
schedule and microbatches. Out: `StageAssignment`s, the fastest first. Knows nothing of JAX.
"""
