"""The autotuner by the paper's method and constants."""

from dataclasses import replace

from jaxquard.cluster import load_cluster
from jaxquard.gemm.autotune.autotune import autotune

SIMULATION = "tpu-v4-simulation"


def tune_by_paper(problem, cluster=SIMULATION, *arguments, **options):
    """Tunes as section 3.2 of MeshSlice does, without an optimizer's state."""
    return autotune(problem, cluster, *arguments, **{"method": "paper", "optimizer_bytes": 0, **options})


def simulation_of_a_tpu():
    """The paper's constants, for a compiler that hides one collective behind a product: plans are split for it."""
    cluster = load_cluster(SIMULATION)
    return replace(cluster, network=replace(cluster.network, hides_one_collective=True))
