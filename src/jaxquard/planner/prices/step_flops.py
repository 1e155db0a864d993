"""FLOPs of a step, and the shortest time in which a cluster can do them."""

from jaxquard.cluster.cluster import Cluster
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import sub_jaxprs
from jaxquard.pricing.roofline.body_work import find_body_work
from jaxquard.pricing.roofline.equation_partitions import product_sizes


def step_flops(graph: StepGraph) -> float:
    """Returns the FLOPs of a step's products, as MFU counts them: forward and backward, what is recomputed only once.

    The update counts with them, which has products only in optimizers such as Muon or Shampoo.
    """
    return sum(
        _flops(graph, position)
        for position, equation in enumerate(graph.equations)
        if graph.phases[position] is not EquationPhase.BACKWARD or not _is_repeated(graph, position)
    )


def bound_time_s(flops: float, cluster: Cluster, num_devices: int) -> float:
    """Returns a bound below the time of any plan: FLOPs over the peak of all devices."""
    return flops / (cluster.compute.peak_flops_per_s * num_devices)


def _flops(graph: StepGraph, position: int) -> float:
    equation = graph.equations[position]
    sizes = product_sizes(equation)
    if sizes is not None:
        return sizes.flops
    return find_body_work(equation).flops if sub_jaxprs(equation) else 0.0


def _is_repeated(graph: StepGraph, position: int) -> bool:
    """Returns true for an equation that computes again what the forward has: a checkpoint's recomputation."""
    return all(graph.first(var) is not var for var in graph.equations[position].outvars)
