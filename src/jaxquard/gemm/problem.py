"""The words that the algorithms, the cost model and the autotuner share: dataflows, Table 1, problems and plans.

A mesh has rows and columns of chips. Every matrix has its rows sharded over the mesh's rows and its columns over the
mesh's columns (MeshSlice, section 3.2.1). There are three dataflows (section 2.2), by the matrix that is stationary;
the others move along rings of the mesh:

    OS  C = A B      A[M,K] along the columns, B[K,N] along the rows, C[M,N] stays
    LS  C = A B^T    A[M,K] stays, B[N,K] along the rows, C[M,N] along the columns
    RS  C = A^T B    A[K,M] along the columns, B[K,N] stays, C[M,N] along the rows

A fully connected layer Y = X W computes one product forward and two backward. Table 1 gives their dataflows, by the
one of its three matrices that is stationary in all of them.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxquard.cluster import Axis
from jaxquard.errors import GemmError
from jaxquard.ir.codec import stored


class Dataflow(enum.Enum):
    """The matrix of C = A B that does not move: output (C), left (A) or right (B) stationary.

    All else follows from the dims of that matrix: the first is sharded over the mesh's rows, the second over its
    columns, and the third of M, K and N is the one along which the other two matrices are sliced and moved.

    Example:
        >>> [dataflow.value for dataflow in jq.gemm.Dataflow]  # output, left and right stationary
        ['os', 'ls', 'rs']
    """

    stationary_dims: str
    """The dims of the stationary matrix: the one over the mesh's rows, the one over its columns."""
    sliced_dim: str
    """The dim that the stationary matrix lacks."""

    OS = "os", "MN", "K"
    LS = "ls", "MK", "N"
    RS = "rs", "KN", "M"

    def __new__(cls, value: str, stationary_dims: str, sliced_dim: str) -> "Dataflow":
        """Keeps the dims in each member: prices ask for them a million times."""
        member = object.__new__(cls)
        member._value_ = value
        member.stationary_dims = stationary_dims
        member.sliced_dim = sliced_dim
        return member

    @property
    def mirrored(self) -> "Dataflow":
        """The dataflow of C^T = B^T A^T, with rows and columns of the mesh exchanged."""
        match self:
            case Dataflow.OS:
                return self
            case Dataflow.LS:
                return Dataflow.RS
            case _:
                return Dataflow.LS


class Kernel(enum.Enum):
    """The program that multiplies: XLA's, or for MeshSlice in OS on TPUs our own in Pallas, not yet run on a chip.

    Example:
        >>> [kernel.value for kernel in jq.gemm.Kernel]
        ['xla', 'pallas']
    """

    XLA = "xla"
    PALLAS = "pallas"


class ProductRole(enum.Enum):
    """The three products of a layer in training."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward data"
    BACKWARD_WEIGHT = "backward weight"

    def arrange(self, m: Any, k: Any, n: Any) -> tuple[Any, Any, Any]:
        """Returns M, K and N of this product, or anything said of them, given those of the forward one."""
        match self:
            case ProductRole.FORWARD:
                return m, k, n
            case ProductRole.BACKWARD_DATA:
                return m, n, k
            case ProductRole.BACKWARD_WEIGHT:
                return k, m, n


class Stationary(enum.Enum):
    """The matrix of a layer Y = X W that does not move, forward and backward: the rows of Table 1.

    Example:
        >>> [stationary.value for stationary in jq.gemm.Stationary]
        ['y', 'x', 'w']
    """

    Y = "y"
    X = "x"
    W = "w"


TABLE_1: Mapping[Stationary, Mapping[ProductRole, Dataflow]] = {
    kept: dict(zip(ProductRole, dataflows, strict=True))
    for kept, dataflows in {
        Stationary.Y: (Dataflow.OS, Dataflow.LS, Dataflow.RS),
        Stationary.X: (Dataflow.LS, Dataflow.OS, Dataflow.RS),
        Stationary.W: (Dataflow.RS, Dataflow.LS, Dataflow.OS),
    }.items()
}
"""Table 1 of MeshSlice: the dataflow of each product of a layer, by the layer's stationary matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmOptions:
    """The choices within an algorithm; one that an algorithm does not have is left at its default.

    Attributes:
        slices: MeshSlice: S. Wang, SUMMA and the 1D ones: the number of iterations. None: 1 slice; 1 iteration a chip.
        block: MeshSlice: the number of neighbouring columns or rows that a slice takes at a time.
        split_for_overlap: MeshSlice: each partial product in parts, each tied to one transfer, so that a TPU's compiler
            hides all of them.
        ring: Wang: the direction of the mesh along which the ring runs. None: the one along which more bytes move.
        bidirectional: Wang and the 1D ones: one half of each shard goes round the ring each way.
        num_packets: SUMMA: the packets in which a broadcast or reduction streams over its ring (section 2.3.3).
        kernel: MeshSlice in OS on TPUs: `Kernel.PALLAS` sends by remote DMA beside the MXU.

    Example:
        >>> jq.gemm.AlgorithmOptions(slices=4).block
        8
    """

    slices: int | None = None
    block: int = 8
    split_for_overlap: bool = False
    ring: Axis | None = None
    bidirectional: bool = False
    num_packets: int = 1
    kernel: Kernel = Kernel.XLA

    def exchanged(self) -> "AlgorithmOptions":
        """The same options where rows and columns of the mesh have changed their parts."""
        return self if self.ring is None else replace(self, ring=self.ring.other)


DEFAULT_OPTIONS = AlgorithmOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class FcLayer:
    """A fully connected layer: W has `in_features` rows and `out_features` columns.

    Attributes:
        ends_residual: its output is added to the input of an earlier layer, as after the attention and the MLP of a
            transformer, so that both need the same sharding. The last layer always does.

    Example:
        >>> jq.gemm.FcLayer(name="up", in_features=512, out_features=2048).ends_residual
        False
    """

    name: str
    in_features: int
    out_features: int
    ends_residual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """The fully connected layers of one block, in order, trained on `num_rows` rows (batch times sequence) a step.

    Attributes:
        num_blocks: the number of such blocks in the model.
        item_bytes: bytes of an element of the matrices that move.

    Example:
        >>> layers = (
        ...     jq.gemm.FcLayer(name="up", in_features=512, out_features=2048),
        ...     jq.gemm.FcLayer(name="down", in_features=2048, out_features=512, ends_residual=True),
        ... )
        >>> jq.gemm.GemmProblem(layers=layers, num_rows=4096, num_blocks=12).num_blocks
        12
    """

    layers: tuple[FcLayer, ...]
    num_rows: int
    num_blocks: int = 1
    item_bytes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """The dataflow and slice counts of one layer; triples are for forward, backward of X and backward of W.

    Attributes:
        algorithm: the layer's own; None for that of its plan.
        is_transposed: all matrices are transposed; the two that move use the other mesh directions.
        slices: the number of slices, or of iterations.
        block: the number of neighbouring columns or rows that a slice takes at a time.
        split_for_overlap: MeshSlice: each partial product in parts, each tied to one transfer, so that a TPU's compiler
            hides all transfers.
        rings: Wang: the mesh direction of the ring; None for the one along which more bytes move.
        bidirectional: Wang and the 1D ones: one half of each shard goes round the ring each way.
        num_packets: SUMMA: the number of packets in which a broadcast or reduction streams over its ring.

    Example:
        >>> layer = jq.gemm.LayerPlan(name="FF1", stationary=jq.gemm.Stationary("y"), slices=(4, 4, 4))
        >>> layer.block
        8
    """

    name: str
    stationary: Stationary
    is_transposed: bool = False
    slices: tuple[int, int, int] = field(default=(1, 1, 1), metadata=stored(above=0))
    block: int = field(default=8, metadata=stored(above=0))
    split_for_overlap: bool = field(default=False, metadata=stored(formerly=("in_parts",)))
    rings: tuple[Axis | None, Axis | None, Axis | None] = (None, None, None)
    bidirectional: bool = field(default=False, metadata=stored(formerly=("both_ways",)))
    num_packets: tuple[int, int, int] = field(default=(1, 1, 1), metadata=stored(above=0))
    algorithm: str | None = None

    @property
    def options(self) -> tuple[AlgorithmOptions, AlgorithmOptions, AlgorithmOptions]:
        """The options of the three products, in the order of `ProductRole`."""
        forward, data, weight = (
            AlgorithmOptions(
                slices=slices,
                block=self.block,
                split_for_overlap=self.split_for_overlap,
                ring=ring,
                bidirectional=self.bidirectional,
                num_packets=num_packets,
            )
            for slices, ring, num_packets in zip(self.slices, self.rings, self.num_packets, strict=True)
        )
        return forward, data, weight


MIXED = "mixed"
"""The algorithm of a plan whose layers have their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPlan:
    """The algorithm, mesh and slice counts for the layers of a problem.

    Attributes:
        algorithm: its name: "meshslice", "collective", "wang", "summa", "cannon"; "mixed" where each layer has its own.
        mesh_shape: rows and columns of chips.

    Example:
        >>> problem = jq.gemm.transformer_block(1024, num_rows=4096)
        >>> tuning = jq.gemm.autotune(problem, cluster="tpu-v4", num_chips=16)
        >>> plan = tuning.best.plan
        >>> plan.algorithm, [layer.name for layer in plan.layers]
        ('meshslice', ['qkv', 'out', 'ff1', 'ff2'])
    """

    algorithm: str
    mesh_shape: tuple[int, int] = field(metadata=stored(above=0))
    layers: tuple[LayerPlan, ...] = field(default=())

    def algorithm_of(self, layer: LayerPlan) -> str:
        """Returns the algorithm of one of its layers."""
        return layer.algorithm or self.algorithm

    def layer(self, name: str) -> LayerPlan:
        """Returns the plan of the layer with this name.

        Raises:
            GemmError: if there is none; it lists the names.
        """
        for found in self.layers:
            if found.name == name:
                return found
        names = ", ".join(layer.name for layer in self.layers)
        raise GemmError(f"the plan has no layer {name!r}; it has {names or 'none'}. Name one of them.")
