"""The one model of time: products, attention, passes over memory and collectives, of a chip and its links.

In: a `Cluster`. Out: seconds (`Times`). Whoever prices anything asks here, so that prices agree with each other.
"""
