"""The exact search on the chain of segments (CFP, section 4.4, equations 7 to 9).

In: for each segment the prices of its strategies, and between neighbours the resharding times: numbers alone.
Out: the Pareto frontier of time against memory, with a plan for each of its points.
"""
