"""One product C = A B on a mesh, as each chip is asked for it: everything but the matrices.

The three dataflows (MeshSlice, section 2.2) differ in how A[M,K] and B[K,N] are cut, and in what moves. C[M,N] is
always cut as (rows, columns). Where the paper writes B^T or A^T, the matrix is cut the other way round:

    dataflow   A[M,K] cut over    B[K,N] cut over    A moves along   B moves along   C moves along   sliced
    OS         (rows, columns)    (rows, columns)    columns, by K   rows, by K      stays           K
    LS         (rows, columns)    (columns, rows)    stays           rows, by N      columns, by N   N
    RS         (columns, rows)    (rows, columns)    columns, by M   stays           rows, by M      M

RS is LS seen in a mirror: C^T = B^T A^T with rows and columns of the mesh exchanged. So an algorithm is written for OS
and LS, and `mirrored` gives it RS. The transposed form of section 3.2.1, C^T = OS(B^T, A^T), is the same dataflow with
rows and columns of the mesh exchanged.

How the shards of a product's three matrices lie in memory, and the product of what one chip has.

The paper writes A^T or B^T where a matrix's rows are cut over the mesh's columns. We never transpose: a matrix keeps
the order of dims that its owner gave it, a `Layout` says which is which, and every step names the dim it means.

Dims: M rows of the product, N its columns, K the dim that is summed over.
"""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.gemm.problem import Dataflow

_SWAP = str.maketrans("MN", "NM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order of the dims of the left and right matrix and of their product.

    Example:
        >>> jq.gemm.Layout(rhs="NK")  # the right matrix is stored transposed
        Layout(lhs='MK', rhs='NK', out='MN')
    """

    lhs: str = "MK"
    rhs: str = "KN"
    out: str = "MN"

    def mirrored(self) -> "Layout":
        """That of the same product with left and right exchanged: C^T = B^T A^T."""
        return Layout(lhs=self.rhs.translate(_SWAP), rhs=self.lhs.translate(_SWAP), out=self.out.translate(_SWAP))

    def dot(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        """The product of two local matrices, in the dtype of `accumulator`."""
        contracted = (((self.lhs.index("K"),), (self.rhs.index("K"),)), ((), ()))
        if self.out == "NM":
            lhs, rhs = rhs, lhs
            contracted = (contracted[0][::-1], ((), ()))
        return lax.dot_general(lhs, rhs, contracted, preferred_element_type=accumulator(lhs.dtype))


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """In what sums are kept on a chip: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


Axes = tuple[str, ...]

_MIRROR = {Dataflow.OS: Dataflow.OS, Dataflow.LS: Dataflow.RS, Dataflow.RS: Dataflow.LS}
_SLICED = {Dataflow.OS: "K", Dataflow.LS: "N", Dataflow.RS: "M"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product with its dataflow, mesh axes and options; hashable, so that it can be a static argument.

    Attributes:
        rows: the mesh axes along which a chip's row number runs; none for a mesh of one row.
        columns: the mesh axes along which its column number runs.
        slices: MeshSlice: S. Wang and SUMMA: the number of iterations. None for the algorithm's default.
        block: MeshSlice: the number of neighbouring columns or rows that a slice takes at a time.
        in_parts: MeshSlice: each partial product in parts, each tied to one transfer, so that a TPU's compiler hides
            all of them: two halves in OS (`meshslice_halves`), a piece for each chip in LS, RS (`meshslice_pieces`).
        ring: Wang: the mesh axes of the ring. None for those along which more bytes move.
        both_ways: Wang and the 1D ones: one half of each shard goes round the ring one way, the other the other way.
        num_packets: SUMMA: the number of packets in which a broadcast or reduction streams over its ring (section
            2.3.3).

    Example:
        >>> product = jq.gemm.Product(dataflow=jq.gemm.Dataflow("os"), rows=("rows",), columns=("columns",), slices=4)
        >>> product.layout.out
        'MN'
    """

    dataflow: Dataflow
    rows: Axes
    columns: Axes
    layout: Layout = field(default=Layout())
    slices: int | None = None
    block: int = 8
    in_parts: bool = False
    ring: Axes | None = None
    both_ways: bool = False
    num_packets: int = 1

    @property
    def sliced_dim(self) -> str:
        """The dim along which shards are gathered or scattered: the one that the stationary matrix lacks."""
        return _SLICED[self.dataflow]

    def mirrored(self) -> "Product":
        """The same product with left and right, rows and columns exchanged."""
        return replace(
            self,
            dataflow=_MIRROR[self.dataflow],
            rows=self.columns,
            columns=self.rows,
            layout=self.layout.mirrored(),
        )

    def transposed(self) -> "Product":
        """The transposed form: the same dataflow with rows and columns of the mesh exchanged."""
        return replace(self, rows=self.columns, columns=self.rows)
