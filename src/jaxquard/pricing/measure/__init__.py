"""Prices by measurement: programs run on the mesh, in turns, beside a reference program (CFP, section 4.2).

In: sharded programs and a mesh (`MeasuredPricer`).
Out: a `Price` for each: seconds, the share of communication, bytes, and where the numbers come from; or a `Failure`.
`measurement` does one call; `runs/` times programs, `machine/` knows the devices.
"""
