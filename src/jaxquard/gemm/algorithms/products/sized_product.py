"""A product joined with its sizes: the parts of it that a chip holds, multiplies and sends."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax

from jaxquard.cluster import Axis, Collective
from jaxquard.cluster.times.ring import ring_size
from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.problem import Dataflow

MeshShape = tuple[int, int]
"""Rows and columns of chips."""

_MATRICES = {"MK": "A", "KN": "B", "MN": "C"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingMatrix:
    """A matrix that moves along one direction of the mesh; of an output, partial sums are reduced."""

    name: str
    axis: Axis
    num_elements: int
    is_output: bool

    @property
    def collective(self) -> Collective:
        return Collective.REDUCE_SCATTER if self.is_output else Collective.ALL_GATHER


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedProduct:
    """A product C[M,N] = A[M,K] B[K,N] with its sizes; rows and columns of a mesh are those of the product.

    Attributes:
        moving: the two matrices that move, inputs first: each along the direction over which its sliced dim is sharded.
    """

    product: Product
    m: int
    k: int
    n: int
    item_bytes: int = 2
    moving: tuple[MovingMatrix, MovingMatrix] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "moving", self._find_moving())

    @property
    def dataflow(self) -> Dataflow:
        return self.product.dataflow

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n

    @property
    def sliced_size(self) -> int:
        """The size of the dim that the stationary matrix lacks: both others are sliced along it."""
        return self.size(self.product.sliced_dim)

    @property
    def accumulates(self) -> bool:
        """True where the products of slices are summed on the chip, not laid side by side."""
        return self.product.sliced_dim == "K"

    def _find_moving(self) -> tuple[MovingMatrix, MovingMatrix]:
        first, second = (
            MovingMatrix(
                name=name,
                axis=self.product.direction(self.product.sliced_dim, dims),
                num_elements=self.size(dims[0]) * self.size(dims[1]),
                is_output=dims == "MN",
            )
            for dims, name in _MATRICES.items()
            if self.product.sliced_dim in dims
        )
        return first, second

    def size(self, dim: str) -> int:
        """Returns the size of M, K or N."""
        return {"M": self.m, "K": self.k, "N": self.n}[dim]

    def local_shape(self, mesh_shape: MeshShape) -> tuple[int, int, int]:
        """Returns M, K and N of one chip's product: the dims of the stationary matrix are sharded."""
        m, k, n = self.m, self.k, self.n
        rows, columns = mesh_shape
        match self.product.sliced_dim:
            case "K":
                return m // rows, k, n // columns
            case "N":
                return m // rows, k // columns, n
            case _:
                return m, k // rows, n // columns

    def slice_shape(self, mesh_shape: MeshShape, num_slices: int) -> tuple[float, float, float]:
        """Returns M, K and N of one chip's product of one slice."""
        m, k, n = self.local_shape(mesh_shape)
        match self.product.sliced_dim:
            case "K":
                return m, k / num_slices, n
            case "N":
                return m, k, n / num_slices
            case _:
                return m / num_slices, k, n

    def is_divided_by(self, mesh_shape: MeshShape) -> bool:
        """Returns whether a mesh divides all dims: the sliced one is sharded over both directions in turn."""
        chips = zip(self.dataflow.stationary_dims, mesh_shape, strict=True)
        is_sharded = all(self.size(dim) % count == 0 for dim, count in chips)
        return is_sharded and all(self.sliced_size % count == 0 for count in mesh_shape)

    def shard_bytes(self, moving: MovingMatrix, mesh_shape: MeshShape) -> float:
        """Returns the bytes of a moving matrix that one chip holds."""
        return moving.num_elements * self.item_bytes / (mesh_shape[0] * mesh_shape[1])

    def gathered_bytes(self, moving: MovingMatrix, mesh_shape: MeshShape) -> float:
        """Returns the bytes of a moving matrix that one chip multiplies or makes in all."""
        return self.shard_bytes(moving, mesh_shape) * ring_size(moving.axis, mesh_shape)

    def longer_ring(self, mesh_shape: MeshShape) -> Axis:
        """Returns the direction along which more bytes move: where Wang's ring runs unless it is chosen."""
        sent = {moving.axis: (ring_size(moving.axis, mesh_shape) - 1) * moving.num_elements for moving in self.moving}
        return Axis.COLUMNS if sent[Axis.COLUMNS] >= sent[Axis.ROWS] else Axis.ROWS

    def mirrored(self) -> "SizedProduct":
        """Returns the same product with left and right, rows and columns exchanged: C^T = B^T A^T."""
        return replace(self, product=self.product.mirrored(), m=self.n, n=self.m)


def size_shards(lhs: jax.Array, rhs: jax.Array, product: Product, *, mesh_shape: MeshShape) -> SizedProduct:
    """Returns a product with the sizes of its whole matrices, given one chip's shards."""
    sizes: dict[str, Any] = {}
    for layout, matrix, shard in ((product.layout.rhs, "KN", rhs), (product.layout.lhs, "MK", lhs)):
        for dim, size in zip(layout, shard.shape, strict=True):
            sizes[dim.lower()] = size * ring_size(product.direction(dim, matrix), mesh_shape)
    return SizedProduct(product=product, item_bytes=lhs.dtype.itemsize, **sizes)
