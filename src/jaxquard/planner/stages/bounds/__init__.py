"""Bounds on the time and the memory of a chain under a schedule, before assignments are tried.

In: the costs of segments, a schedule's profile and a limit of memory. Out: seconds that no assignment can beat, or that
none fits.
"""
