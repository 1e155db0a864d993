"""The exact search on the chain of segments (CFP, section 4.4, equations 8 and 9).

In: for each segment the prices of its strategies (`PricedSegment`), and between neighbours the resharding times:
numbers alone.
Out: the Pareto `Frontier` of time against memory, with a plan for each of its points.
"""
