"""Compiles every algorithm in every dataflow, and counts the transfers that hide."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jax.sharding import Mesh

from jaxquard.cluster.times.ring import ring_size
from jaxquard.gemm.algorithms.check_product import check_product
from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.products.shardings import mesh_shape_of
from jaxquard.gemm.algorithms.products.sized_product import SizedProduct
from jaxquard.gemm.algorithms.registry import Algorithm, find_algorithm
from jaxquard.gemm.overlap.compile import TPU_COMPILER_OPTIONS, compile_product
from jaxquard.gemm.overlap.count_hidden import Overlap, count_hidden
from jaxquard.gemm.overlap.hideable import Rings, num_hideable
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow

OverlapReport = Mapping[str, Mapping[str, Overlap]]
_MESHSLICE_OPTIONS = AlgorithmOptions(slices=4, split_for_overlap=True)


def overlap_report(
    mesh: Mesh,
    *,
    algorithms: Sequence[str] = ("meshslice", "wang", "collective"),
    options: AlgorithmOptions = _MESHSLICE_OPTIONS,
    sizes: tuple[int, int, int] | None = None,
    compiler_options: Mapping[str, str] = TPU_COMPILER_OPTIONS,
    on_progress: Callable[[str, Dataflow], None] = lambda algorithm, dataflow: None,
) -> OverlapReport:
    """Counts, for each algorithm and dataflow, the transfers that could hide and those that do.

    Args:
        mesh: from `topology_mesh`.
        options: those of MeshSlice. The others run as they are: one iteration a chip.
        sizes: M, K and N; left out, large enough for a compiler to care and small enough to compile in seconds.
        on_progress: called before each compilation, which takes seconds to a minute.

    Raises:
        GemmError: if there is no such algorithm, or sizes, slices and mesh do not fit.
    """
    chosen = [find_algorithm(name) for name in algorithms]
    used = sizes or default_sizes(mesh, options)
    report: dict[str, dict[str, Overlap]] = {}
    for algorithm in chosen:
        own = options if algorithm.name == "meshslice" else AlgorithmOptions()
        for dataflow in Dataflow:
            on_progress(algorithm.name, dataflow)
            overlap = _count(mesh, used, algorithm, Product(dataflow=dataflow), own, compiler_options)
            report.setdefault(algorithm.name, {})[dataflow.value] = overlap
    return report


def default_sizes(mesh: Mesh, options: AlgorithmOptions) -> tuple[int, int, int]:
    """Returns about 2,048 rows for each row of chips, and 768 columns for each of the longer side."""
    longer = math.lcm(mesh.shape["rows"], mesh.shape["columns"])
    unit = longer * (options.slices or 1) * options.block

    def up(size: int) -> int:
        return -(-size // unit) * unit

    return up(2048 * mesh.shape["rows"]), up(768 * longer), up(768 * longer)


def _count(
    mesh: Mesh,
    sizes: tuple[int, int, int],
    algorithm: Algorithm,
    product: Product,
    options: AlgorithmOptions,
    compiler_options: Mapping[str, str],
) -> Overlap:
    rows, columns = algorithm.view(product.rows, product.columns)
    m, k, n = sizes
    seen = SizedProduct(product=replace(product, rows=rows, columns=columns), m=m, k=k, n=n)
    mesh_shape = mesh_shape_of(seen.product, mesh.shape)
    check_product(algorithm, seen, options, mesh_shape=mesh_shape)
    ring = ring_size(options.ring or seen.longer_ring(mesh_shape), mesh_shape)
    sums = (ring_size(moving.axis, mesh_shape) for moving in seen.moving if moving.is_output)
    rings = Rings(
        num_rows=mesh_shape[0], num_columns=mesh_shape[1], num_chips_of_ring=ring, num_chips_of_sums=next(sums, 1)
    )
    text = compile_product(
        mesh, sizes, algorithm=algorithm.name, product=product, options=options, compiler_options=compiler_options
    )
    return Overlap(
        hideable=num_hideable(algorithm.name, options, rings), hidden=count_hidden(text, algorithm=algorithm.name)
    )
