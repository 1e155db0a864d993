"""Simulation of a cluster, event by event (MeshSlice, section 4.1).

In: `Job`s, each with its time, its resource of a chip, its memory traffic and the jobs that it waits for.
Out: a `Timeline` of spans. It knows nothing of products: `gemm.cost.play` makes the jobs of an algorithm.
"""

from jaxquard.simulate.play_jobs import Job as Job
from jaxquard.simulate.play_jobs import play_jobs as play_jobs
from jaxquard.simulate.play_jobs import share_memory as share_memory
