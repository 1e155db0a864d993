"""The algorithms by name, for plans, for the command line and for `multiply`."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import jax

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.cannon import cannon
from jaxquard.gemm.algorithms.collective import collective
from jaxquard.gemm.algorithms.meshslice import meshslice
from jaxquard.gemm.algorithms.one_dimensional import one_column, one_row
from jaxquard.gemm.algorithms.products.product import Axes, Product
from jaxquard.gemm.algorithms.products.sized_product import MeshShape
from jaxquard.gemm.algorithms.summa import num_parts, summa
from jaxquard.gemm.algorithms.wang import wang
from jaxquard.gemm.problem import AlgorithmOptions


def _same_axes(rows: Axes, columns: Axes) -> tuple[Axes, Axes]:
    return rows, columns


def _lcm(options: AlgorithmOptions, mesh_shape: MeshShape) -> int:
    return math.lcm(*mesh_shape)


def _meshslice_pieces(options: AlgorithmOptions, mesh_shape: MeshShape) -> int:
    slices = options.slices or 1
    return math.lcm(*mesh_shape) * (slices * options.block if slices > 1 else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A way to multiply on a mesh.

    Attributes:
        multiply: given the shards of one chip, the product and the options, the chip's shard of the result; inside
            `shard_map`.
        view: the mesh as it uses it: from the axes of rows and of columns, its own.
        num_pieces: the number of equal pieces of the sliced dim, on a mesh.
        is_square: it needs as many rows of chips as columns.
        has_slices: there is something to choose: slices, or iterations.
        has_ring_iterations: the slices are iterations that divide the chips of its ring.
        has_packets: it streams packets over its rings.
        options: the fields of `AlgorithmOptions` besides `slices` that it takes; another is refused, not ignored.
    """

    name: str
    multiply: Callable[[jax.Array, jax.Array, Product, AlgorithmOptions], jax.Array]
    view: Callable[[Axes, Axes], tuple[Axes, Axes]] = _same_axes
    num_pieces: Callable[[AlgorithmOptions, MeshShape], int] = _lcm
    is_square: bool = False
    has_slices: bool = True
    has_ring_iterations: bool = False
    has_packets: bool = False
    options: frozenset[str] = frozenset()


_MESHSLICE = frozenset({"block", "kernel", "split_for_overlap"})
_RING = frozenset({"bidirectional"})

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
    """Returns the algorithm that a name stands for.

    Raises:
        GemmError: if there is no such name; it lists those that there are.
    """
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise GemmError(f"no GeMM algorithm is called {name!r}. Use one of: {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name]


@functools.cache
def mesh_shapes(algorithm: str, num_chips: int) -> tuple[MeshShape, ...]:
    """Returns every mesh of so many chips that an algorithm can use."""
    chosen = find_algorithm(algorithm)
    if chosen.view is one_row:
        return ((1, num_chips),)
    if chosen.view is one_column:
        return ((num_chips, 1),)
    shapes = tuple((rows, num_chips // rows) for rows in range(1, num_chips + 1) if num_chips % rows == 0)
    return tuple(shape for shape in shapes if shape[0] == shape[1]) if chosen.is_square else shapes
