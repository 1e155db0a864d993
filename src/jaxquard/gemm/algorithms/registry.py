"""The algorithms by name, for plans, for the command line and for `multiply`."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.cannon import cannon
from jaxquard.gemm.algorithms.collective import collective
from jaxquard.gemm.algorithms.meshslice import meshslice
from jaxquard.gemm.algorithms.one_dimensional import one_column, one_row
from jaxquard.gemm.algorithms.product import Axes, Product
from jaxquard.gemm.algorithms.summa import num_parts, summa
from jaxquard.gemm.algorithms.wang import wang


def _same_axes(rows: Axes, columns: Axes) -> tuple[Axes, Axes]:
    return rows, columns


def _lcm(product: Product, *, num_rows: int, num_columns: int) -> int:
    return math.lcm(num_rows, num_columns)


def _meshslice_pieces(product: Product, *, num_rows: int, num_columns: int) -> int:
    slices = product.slices or 1
    return math.lcm(num_rows, num_columns) * (slices * product.block if slices > 1 else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A way to multiply on a mesh.

    Attributes:
        multiply: given the shards of one chip and the product, the chip's shard of the result; inside `shard_map`.
        view: how it sees the mesh: from its axes of rows and of columns, those that it uses.
        num_pieces: into how many equal pieces it cuts the sliced dim.
        is_square: whether it needs as many rows of chips as columns.
        has_slices: whether there is anything to choose: slices, or iterations.
        has_ring_iterations: whether the slices are iterations that divide the chips of its ring.
        has_packets: whether it streams packets over its rings.
        options: the words besides `slices` that it takes; another is refused, not ignored.
    """

    name: str
    multiply: Callable[[jax.Array, jax.Array, Product], jax.Array]
    view: Callable[[Axes, Axes], tuple[Axes, Axes]] = _same_axes
    num_pieces: Callable[..., int] = _lcm
    is_square: bool = False
    has_slices: bool = True
    has_ring_iterations: bool = False
    has_packets: bool = False
    options: frozenset[str] = frozenset()


_MESHSLICE = frozenset({"block", "in_parts"})
_RING = frozenset({"both_ways"})

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(name="meshslice", multiply=meshslice, num_pieces=_meshslice_pieces, options=_MESHSLICE),
        Algorithm(name="collective", multiply=collective, has_slices=False),
        Algorithm(name="wang", multiply=wang, has_ring_iterations=True, options=_RING | {"ring"}),
        Algorithm(
            name="summa", multiply=summa, num_pieces=num_parts, has_packets=True, options=frozenset({"num_packets"})
        ),
        Algorithm(name="cannon", multiply=cannon, is_square=True, has_slices=False),
        Algorithm(name="1d_tp", multiply=wang, view=one_row, has_ring_iterations=True, options=_RING),
        Algorithm(name="fsdp", multiply=wang, view=one_column, has_ring_iterations=True, options=_RING),
    )
}


def find_algorithm(name: str) -> Algorithm:
    """The algorithm that a name stands for.

    Raises:
        GemmError: if there is no such name; it lists those that there are.
    """
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise GemmError(f"no GeMM algorithm is called {name!r}. Use one of: {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name]
