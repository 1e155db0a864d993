"""Compiles every algorithm in every dataflow, and counts what hides."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jax.sharding import Mesh

from jaxquard.gemm.algorithms.check_product import check_product
from jaxquard.gemm.algorithms.product import Product
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.algorithms.shardings import num_chips
from jaxquard.gemm.algorithms.sizes import choose_ring
from jaxquard.gemm.overlap.compile import TPU_COMPILER_OPTIONS, compile_product
from jaxquard.gemm.overlap.count_hidden import Overlap, count_hidden
from jaxquard.gemm.overlap.hideable import Rings, num_hideable
from jaxquard.gemm.problem import Dataflow

OverlapReport = Mapping[str, Mapping[str, Overlap]]

_NAMES = {"M": "M, the rows of lhs,", "K": "K, the dim summed over,", "N": "N, the columns of rhs,"}


def overlap_report(
    mesh: Mesh,
    *,
    algorithms: Sequence[str] = ("meshslice", "wang", "collective"),
    slices: int = 4,
    block: int = 8,
    sizes: tuple[int, int, int] | None = None,
    in_parts: bool = True,
    compiler_options: Mapping[str, str] = TPU_COMPILER_OPTIONS,
    on_progress: Callable[[str, Dataflow], None] = lambda algorithm, dataflow: None,
) -> OverlapReport:
    """For each algorithm and dataflow, how many transfers could hide and how many do.

    Args:
        mesh: from `topology_mesh`.
        slices: MeshSlice's S. The others run as they are: one iteration a chip.
        sizes: M, K and N; left out, large enough for a compiler to care and small enough to compile in seconds.
        on_progress: called before each compilation, which takes seconds to a minute.

    Raises:
        GemmError: if there is no such algorithm, or sizes, slices and mesh do not fit.
    """
    chosen = [find_algorithm(name) for name in algorithms]
    report: dict[str, dict[str, Overlap]] = {}
    for algorithm in chosen:
        name = algorithm.name
        for dataflow in Dataflow:
            on_progress(name, dataflow)
            product = Product(
                dataflow=dataflow,
                rows=("rows",),
                columns=("columns",),
                slices=slices if name == "meshslice" else None,
                block=block,
                in_parts=in_parts and "in_parts" in algorithm.options,
            )
            used = sizes or default_sizes(mesh, slices=slices, block=block)
            report.setdefault(name, {})[dataflow.value] = _overlap(mesh, used, name, product, compiler_options)
    return report


def default_sizes(mesh: Mesh, *, slices: int, block: int) -> tuple[int, int, int]:
    """About 2,048 rows for each row of chips, and 768 columns for each of the longer side."""
    longer = math.lcm(mesh.shape["rows"], mesh.shape["columns"])
    unit = longer * slices * block

    def up(size: int) -> int:
        return -(-size // unit) * unit

    return up(2048 * mesh.shape["rows"]), up(768 * longer), up(768 * longer)


def _overlap(
    mesh: Mesh, sizes: tuple[int, int, int], algorithm: str, product: Product, compiler_options: Mapping[str, str]
) -> Overlap:
    chosen = find_algorithm(algorithm)
    seen_rows, seen_columns = chosen.view(product.rows, product.columns)
    seen = replace(product, rows=seen_rows, columns=seen_columns)
    rows, columns = num_chips(seen_rows, mesh.shape), num_chips(seen_columns, mesh.shape)
    by_name: dict[str, int] = {"M": sizes[0], "K": sizes[1], "N": sizes[2]}
    check_product(chosen, seen, sizes=by_name, num_rows=rows, num_columns=columns, names=_NAMES)
    is_along_rows = choose_ring(seen, by_name, rows, columns) == seen_rows
    rings = Rings(num_rows=rows, num_columns=columns, num_chips_of_ring=rows if is_along_rows else columns)
    text = compile_product(mesh, sizes, algorithm=algorithm, product=product, compiler_options=compiler_options)
    return Overlap(hideable=num_hideable(algorithm, product, rings), hidden=count_hidden(text, algorithm=algorithm))
