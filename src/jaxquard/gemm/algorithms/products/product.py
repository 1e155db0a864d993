"""One product C = A B on a mesh, executed or priced: everything but the matrices and the algorithm.

The three dataflows (MeshSlice, section 2.2) differ in how A[M,K] and B[K,N] are sharded, and in which matrices move.
C[M,N] is always sharded over (rows, columns). Where the paper writes B^T or A^T, the matrix is sharded the other way
round:

    dataflow   A[M,K] sharded over   B[K,N] sharded over   A moves along   B moves along   C moves along   sliced
    OS         (rows, columns)       (rows, columns)       columns, by K   rows, by K      stays           K
    LS         (rows, columns)       (columns, rows)       stays           rows, by N      columns, by N   N
    RS         (columns, rows)       (rows, columns)       columns, by M   stays           rows, by M      M

All of the table follows from the dims of the stationary matrix (`Dataflow.stationary_dims`). RS is LS seen in a mirror:
C^T = B^T A^T with rows and columns of the mesh exchanged. So an algorithm is written for OS and LS, and `mirrored`
gives it RS. The transposed form of section 3.2.1, C^T = OS(B^T, A^T), is the same dataflow with rows and columns of
the mesh exchanged.

We never transpose: a matrix keeps the order of dims that its owner gave it, a `Layout` says which is which, and every
step names the dim it means.

Dims: M rows of the product, N its columns, K the dim that is summed over.
"""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.cluster import Axis
from jaxquard.gemm.problem import Dataflow

Axes = tuple[str, ...]
"""Names of mesh axes that together are one direction of a 2D mesh, the first one varying slowest."""

_SWAP = str.maketrans("MN", "NM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order in memory of the dims of the left and right matrix and of their product.

    Example:
        >>> jq.gemm.Layout(rhs="NK")  # the right matrix is stored transposed
        Layout(lhs='MK', rhs='NK', out='MN')
    """

    lhs: str = "MK"
    rhs: str = "KN"
    out: str = "MN"

    def mirrored(self) -> "Layout":
        """Returns the layout of the same product with left and right exchanged: C^T = B^T A^T."""
        return Layout(lhs=self.rhs.translate(_SWAP), rhs=self.lhs.translate(_SWAP), out=self.out.translate(_SWAP))

    def dot(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        """Multiplies two local matrices, in the dtype of `accumulator`."""
        contracted = (((self.lhs.index("K"),), (self.rhs.index("K"),)), ((), ()))
        if self.out == "NM":
            lhs, rhs = rhs, lhs
            contracted = (contracted[0][::-1], ((), ()))
        return lax.dot_general(lhs, rhs, contracted, preferred_element_type=accumulator(lhs.dtype))


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype of sums on a chip: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product by its dataflow, the directions of its mesh and its layout; hashable, for use as a static argument.

    Attributes:
        rows: the mesh axes along which a chip's row number runs; none for a mesh of one row.
        columns: the mesh axes along which its column number runs.

    Example:
        >>> product = jq.gemm.Product(dataflow=jq.gemm.Dataflow("os"), rows=("rows",), columns=("columns",))
        >>> product.layout.out
        'MN'
    """

    dataflow: Dataflow
    rows: Axes = ("rows",)
    columns: Axes = ("columns",)
    layout: Layout = field(default=Layout())

    @property
    def sliced_dim(self) -> str:
        """The dim along which shards are gathered or scattered."""
        return self.dataflow.sliced_dim

    def direction(self, dim: str, matrix: str) -> Axis:
        """Returns the direction of the mesh over which a dim of a matrix ("MK", "KN" or "MN") is sharded.

        The stationary matrix decides for its two dims; the sliced dim takes the direction that its neighbour leaves.
        """
        over_rows, sliced = self.dataflow.stationary_dims[0], self.dataflow.sliced_dim
        is_over_rows = over_rows not in matrix if dim == sliced else over_rows == dim
        return Axis.ROWS if is_over_rows else Axis.COLUMNS

    def axes(self, direction: Axis) -> Axes:
        """Returns the mesh axes of a direction."""
        return self.rows if direction is Axis.ROWS else self.columns

    def mirrored(self) -> "Product":
        """Returns the same product with left and right, rows and columns exchanged."""
        return replace(
            self,
            dataflow=self.dataflow.mirrored,
            rows=self.columns,
            columns=self.rows,
            layout=self.layout.mirrored(),
        )

    def transposed(self) -> "Product":
        """Returns the transposed form: the same dataflow with rows and columns of the mesh exchanged."""
        return replace(self, rows=self.columns, columns=self.rows)
