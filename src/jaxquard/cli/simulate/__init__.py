"""`jaxquard simulate`: a pipeline on a cluster that is not here.

In: a model and a cluster, task times, or a measured trace; and a schedule (`setup`).
Out: the step time, the bubble, the memory of each actor and whether it fits (`answer`), drawn as SVG, as a page or as a
Perfetto trace (`command`).
"""
