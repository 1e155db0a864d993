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
"""

from dataclasses import dataclass, field, replace

from jaxquard.gemm.layout import Layout
from jaxquard.gemm.problem import Dataflow

Axes = tuple[str, ...]

_MIRROR = {Dataflow.OS: Dataflow.OS, Dataflow.LS: Dataflow.RS, Dataflow.RS: Dataflow.LS}
_SLICED = {Dataflow.OS: "K", Dataflow.LS: "N", Dataflow.RS: "M"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What is multiplied how; hashable, so that it can be a static argument.

    Attributes:
        rows: the mesh axes along which a chip's row number runs; none for a mesh of one row.
        columns: likewise for its column number.
        slices: MeshSlice: S. Wang and SUMMA: the number of iterations. None: the algorithm's own.
        block: MeshSlice: how many neighbouring columns or rows a slice takes at a time.
        in_parts: MeshSlice: each partial product in parts, each tied to one transfer, so that a TPU's compiler hides
            all of them: two halves in OS (`meshslice_halves`), a piece for each chip in LS, RS (`meshslice_pieces`).
        ring: Wang: along which axes the ring runs. None: those along which more bytes move.
        both_ways: Wang and the 1D ones: one half of each shard goes round the ring one way, the other the other way.
        num_packets: SUMMA: in how many packets a broadcast or reduction streams over its ring (section 2.3.3).
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
