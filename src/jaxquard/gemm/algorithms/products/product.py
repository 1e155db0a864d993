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
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxquard.cluster import Axis
from jaxquard.gemm.problem import Dataflow

Axes = tuple[str, ...]
"""Names of mesh axes that together are one direction of a 2D mesh, the first one varying slowest."""

_SWAP = str.maketrans("MN", "NM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order in memory of the dims of the left and right matrix and of their product, and the arithmetic of it.

    Attributes:
        precision: of local products, as `lax.dot_general` takes it.
        result_dtype: of the product and of sums that travel; None for that of the matrices.

    Example:
        >>> jq.gemm.Layout(rhs="NK")  # the right matrix is stored transposed
        Layout(lhs='MK', rhs='NK', out='MN')
    """

    lhs: str = "MK"
    rhs: str = "KN"
    out: str = "MN"
    precision: Any = field(default=None, repr=False)
    result_dtype: np.dtype | None = field(default=None, repr=False)

    def mirrored(self) -> "Layout":
        """Returns the layout of the same product with left and right exchanged: C^T = B^T A^T."""
        return replace(
            self,
            lhs=self.rhs.translate(_SWAP),
            rhs=self.lhs.translate(_SWAP),
            out=self.out.translate(_SWAP),
            precision=_exchanged(self.precision),
        )

    def rounded(self, dtype: np.dtype) -> np.dtype:
        """Returns the dtype to which sums are rounded, to travel or as the result, given that of the matrices."""
        return self.result_dtype or dtype

    def dot(self, lhs: jax.Array, rhs: jax.Array, *, is_rounded: bool = False) -> jax.Array:
        """Multiplies two local matrices.

        Args:
            is_rounded: nothing is added on the chip, so the product itself rounds: a GPU does not fuse the cast of an
                fp32 result, a pass over memory. Otherwise the result has the dtype of `accumulator`.
        """
        rounded = self.rounded(lhs.dtype)
        precision, dtype = self.precision, rounded if is_rounded else accumulator(lhs.dtype, rounded)
        contracted = (((self.lhs.index("K"),), (self.rhs.index("K"),)), ((), ()))
        if self.out == "NM":
            lhs, rhs = rhs, lhs
            contracted, precision = (contracted[0][::-1], ((), ())), _exchanged(precision)
        return lax.dot_general(lhs, rhs, contracted, precision=precision, preferred_element_type=dtype)


def _exchanged(precision: Any) -> Any:
    """Returns the precision of a product with left and right exchanged."""
    return precision[::-1] if isinstance(precision, tuple) else precision


def accumulator(*dtypes: np.dtype) -> np.dtype:
    """Returns the dtype of sums on a chip: float32, or float64 if one of the dtypes is."""
    return np.dtype(np.float64 if np.dtype(np.float64) in dtypes else np.float32)


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
