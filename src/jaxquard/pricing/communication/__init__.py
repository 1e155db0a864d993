"""Communication of a compiled program: its collectives with their bytes, and how long a run waits for them.

In: the text of a compiled program, or a trace of JAX's profiler. Out: collectives, and the intervals of each device.
"""
