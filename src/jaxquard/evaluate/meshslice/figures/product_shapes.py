"""Figure 11: the eight distinct products of each model's FC layers, by every 2D algorithm, on 256 chips.

A block's 4 layers have 12 products in training. With the largest matrix in place (Table 1) they are of 8 shapes: OUT's
forward and backward data are one, FF2's three are FF1's. Each algorithm has its best mesh for each product; Wang and
SUMMA are unrolled to MeshSlice's slices of that product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from jaxquard.cluster import Cluster
from jaxquard.evaluate.meshslice.setup.models import MODELS, PaperModel
from jaxquard.gemm.algorithms.products.layer_products import sized_products
from jaxquard.gemm.algorithms.products.sized_product import SizedProduct
from jaxquard.gemm.algorithms.registry import mesh_shapes
from jaxquard.gemm.autotune.models import SEQUENCE
from jaxquard.gemm.autotune.slices import PricedOptions, price_slices, slice_counts
from jaxquard.gemm.problem import Stationary

NUM_CHIPS = 256
ALGORITHMS_2D = ("meshslice", "wang", "collective", "cannon", "summa")
# The paper's Algorithm 2 sets it for TPUs.
_BLOCK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductPoint:
    """One bar; `shape` is (M, N, K), as the paper writes it."""

    model: str
    product: str
    shape: tuple[int, int, int]
    dataflow: str
    algorithm: str
    mesh_shape: tuple[int, int]
    num_slices: int
    time_s: float
    utilisation: float


def product_shapes(cluster: Cluster, *, algorithms: Sequence[str] = ALGORITHMS_2D) -> tuple[ProductPoint, ...]:
    """All bars; MeshSlice is tuned first, whether asked for or not."""
    points = []
    for model in MODELS:
        for name, product in distinct_products(model):
            tuned = _best(cluster, product, "meshslice", num_slices=None)
            for algorithm in algorithms:
                found = tuned if algorithm == "meshslice" else _best(
                    cluster, product, algorithm, num_slices=tuned[1].num_slices
                )  # fmt: skip
                points.append(_point(cluster, model, name, product, algorithm, *found))
    return tuple(points)


def distinct_products(model: PaperModel) -> tuple[tuple[str, SizedProduct], ...]:
    """The eight products with a name; of equal ones the first."""
    problem = model.problem(NUM_CHIPS // 2)
    found: dict[tuple[int, int, int], tuple[str, SizedProduct]] = {}
    for layer in problem.layers:
        kept = Stationary.Y if layer.out_features > layer.in_features else Stationary.X
        products = sized_products(layer, num_rows=NUM_CHIPS // 2 * SEQUENCE, stationary=kept)
        for part, product in zip(("forward", "data", "weight"), products, strict=True):
            found.setdefault((product.m, product.k, product.n), (f"{layer.name.upper()} {part}", product))
    return tuple(found.values())


def mean_gain(points: Sequence[ProductPoint], other: str) -> float:
    """Returns how much faster MeshSlice is than another algorithm, in the mean of all products."""
    times = {(point.model, point.product, point.algorithm): point.time_s for point in points}
    return mean(
        times[model, product, other] / time_s - 1
        for (model, product, algorithm), time_s in times.items()
        if algorithm == "meshslice"
    )


def _best(
    cluster: Cluster, product: SizedProduct, algorithm: str, *, num_slices: int | None
) -> tuple[tuple[int, int], PricedOptions]:
    """The best mesh, with the best slices or those given."""
    found = []
    for mesh in mesh_shapes(algorithm, NUM_CHIPS):
        counts = (num_slices,) if num_slices else slice_counts(product, mesh_shape=mesh, block=_BLOCK)
        if product.is_divided_by(mesh):
            priced = price_slices(cluster, product, algorithm=algorithm, mesh_shape=mesh, counts=counts)
            found.append((mesh, priced[0]))
    return min(found, key=lambda pair: pair[1].cost.time_s)


def _point(
    cluster: Cluster,
    model: PaperModel,
    name: str,
    product: SizedProduct,
    algorithm: str,
    mesh: tuple[int, int],
    priced: PricedOptions,
) -> ProductPoint:
    time_s = priced.cost.time_s
    return ProductPoint(
        model=model.key,
        product=name,
        shape=(product.m, product.n, product.k),
        dataflow=product.dataflow.value,
        algorithm=algorithm,
        mesh_shape=mesh,
        num_slices=priced.num_slices,
        time_s=time_s,
        utilisation=product.flops / (time_s * NUM_CHIPS * cluster.compute.peak_flops_per_s),
    )
