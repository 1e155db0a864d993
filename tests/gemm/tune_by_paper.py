"""The autotuner by the paper's method and constants."""

from jaxquard.gemm.autotune.autotune import autotune

SIMULATION = "tpu-v4-simulation"


def tune_by_paper(problem, cluster=SIMULATION, *arguments, **options):
    """Tunes as section 3.2 of MeshSlice does, without an optimizer's state."""
    return autotune(problem, cluster, *arguments, **{"method": "paper", "optimizer_bytes": 0, **options})
