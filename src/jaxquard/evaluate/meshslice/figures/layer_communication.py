"""Figure 15: the communication time of each FC layer in MeshSlice, forward and backward, on the 4x4 mesh.

The paper compares its estimates with measurements on 16 real chips, which we do not have. What stands against our
estimates instead is the simulation, in which moves are slowed where memory is contended for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from jaxquard.cluster import Cluster
from jaxquard.evaluate.meshslice.figures.real_mesh import BATCH, MESH_SHAPE, NUM_CHIPS, NUM_SLICES
from jaxquard.evaluate.meshslice.setup.models import MODELS
from jaxquard.evaluate.meshslice.setup.tuner import Tuner
from jaxquard.gemm.algorithms.products.sized_product import SizedProduct
from jaxquard.gemm.cost.cost import price_product
from jaxquard.gemm.cost.play import play_product
from jaxquard.gemm.cost.products import plan_products
from jaxquard.gemm.problem import AlgorithmOptions
from jaxquard.ir.timeline import Track

_OPTIONS = AlgorithmOptions(slices=NUM_SLICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCommunication:
    """One FC layer; seconds of all moves, hidden or not."""

    model: str
    layer: str
    estimated_s: float
    simulated_s: float


def layer_communication(tuner: Tuner, cluster: Cluster) -> tuple[LayerCommunication, ...]:
    """The four layers of both models."""
    found = []
    for model in MODELS:
        problem = model.problem(BATCH)
        plan = tuner.tune(problem, cluster, NUM_CHIPS, mesh_shape=MESH_SHAPE, num_slices=NUM_SLICES).plan
        for layer, products in zip(plan.layers, plan_products(problem, plan.layers), strict=True):
            found.append(
                LayerCommunication(
                    model=model.key,
                    layer=layer.name.upper(),
                    estimated_s=sum(_estimated_s(cluster, product) for product in products),
                    simulated_s=sum(_simulated_s(cluster, product) for product in products),
                )
            )
    return tuple(found)


def mean_error(layers: Sequence[LayerCommunication]) -> float:
    """Returns the mean error of the estimates, relative to the simulation."""
    return mean(abs(layer.estimated_s / layer.simulated_s - 1) for layer in layers)


def _estimated_s(cluster: Cluster, product: SizedProduct) -> float:
    cost = price_product(cluster, product, algorithm="meshslice", mesh_shape=MESH_SHAPE, options=_OPTIONS)
    return cost.communication_s


def _simulated_s(cluster: Cluster, product: SizedProduct) -> float:
    timeline = play_product(
        cluster,
        product,
        algorithm="meshslice",
        mesh_shape=MESH_SHAPE,
        options=_OPTIONS,
        memory_contention=True,
    )
    return sum(span.time_s for span in timeline.spans if span.track is Track.TRANSFER)
