"""`jaxquard price`: what a step costs on a cluster that need not be here.

In: a model or a step, a cluster, and a strategy by name or as a saved plan. Out: seconds, memory, collectives and a
timeline, by the cluster's own compiler.
"""
