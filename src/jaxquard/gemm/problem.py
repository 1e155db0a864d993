"""What is multiplied, and how: the words that the algorithms, the cost model and the autotuner share.

A mesh has rows and columns of chips. Every matrix has its rows cut over the mesh's rows and its columns over the
mesh's columns (MeshSlice, section 3.2.1). There are three dataflows (section 2.2), by the matrix that stays put; the
others move along rings of the mesh:

    OS  C = A B      A[M,K] along the columns, B[K,N] along the rows, C[M,N] stays
    LS  C = A B^T    A[M,K] stays, B[N,K] along the rows, C[M,N] along the columns
    RS  C = A^T B    A[K,M] along the columns, B[K,N] stays, C[M,N] along the rows

A fully connected layer Y = X W computes one product forward and two backward. Table 1 gives their dataflows, by the
one of its three matrices that stays put in all of them.
"""

import enum
from dataclasses import dataclass, field

from jaxquard.cluster import Axis
from jaxquard.errors import GemmError


class Dataflow(enum.Enum):
    """The matrix of C = A B that does not move: output (C), left (A) or right (B) stationary.

    Example:
        >>> [dataflow.value for dataflow in jq.gemm.Dataflow]  # output, left and right stationary
        ['os', 'ls', 'rs']
    """

    OS = "os"
    LS = "ls"
    RS = "rs"


class Stationary(enum.Enum):
    """The matrix of a layer Y = X W that does not move, forward and backward: the rows of Table 1.

    Example:
        >>> [stationary.value for stationary in jq.gemm.Stationary]
        ['y', 'x', 'w']
    """

    Y = "y"
    X = "x"
    W = "w"

    @property
    def dataflows(self) -> tuple[Dataflow, Dataflow, Dataflow]:
        """The dataflows of the forward product, the backward for X and the backward for W."""
        return _TABLE_1[self]


_TABLE_1 = {
    Stationary.Y: (Dataflow.OS, Dataflow.LS, Dataflow.RS),
    Stationary.X: (Dataflow.LS, Dataflow.OS, Dataflow.RS),
    Stationary.W: (Dataflow.RS, Dataflow.LS, Dataflow.OS),
}


class Pass(enum.Enum):
    """The three products of a layer in training."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward data"
    BACKWARD_WEIGHT = "backward weight"


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
        is_transposed: all matrices are transposed; the two that move use the other mesh directions.
        slices: the number of slices, or of iterations.
        block: the number of neighbouring columns or rows that a slice takes at a time.
        in_parts: MeshSlice: products in parts, each tied to one transfer, so that a TPU's compiler hides them all.
        rings: Wang: the mesh direction of the ring; None for the one along which more bytes move.
        both_ways: Wang and the 1D ones: one half of each shard goes round the ring each way.
        num_packets: SUMMA: the number of packets in which a broadcast or reduction streams over its ring.

    Example:
        >>> layer = jq.gemm.LayerPlan(name="FF1", stationary=jq.gemm.Stationary("y"), slices=(4, 4, 4))
        >>> layer.block
        8
    """

    name: str
    stationary: Stationary
    is_transposed: bool = False
    slices: tuple[int, int, int] = (1, 1, 1)
    block: int = 8
    in_parts: bool = False
    rings: tuple[Axis | None, Axis | None, Axis | None] = (None, None, None)
    both_ways: bool = False
    num_packets: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPlan:
    """The algorithm, mesh and slice counts for the layers of a problem.

    Attributes:
        algorithm: its name: "meshslice", "collective", "wang", "summa", "cannon".
        mesh_shape: rows and columns of chips.

    Example:
        >>> problem = jq.gemm.transformer_block(1024, num_rows=4096)
        >>> tuning = jq.gemm.autotune(problem, cluster="tpu-v4", num_chips=16)
        >>> plan = tuning.best.plan
        >>> plan.algorithm, [layer.name for layer in plan.layers]
        ('meshslice', ['qkv', 'out', 'ff1', 'ff2'])
    """

    algorithm: str
    mesh_shape: tuple[int, int]
    layers: tuple[LayerPlan, ...] = field(default=())

    def layer(self, name: str) -> LayerPlan:
        """The plan of the layer with this name.

        Raises:
            GemmError: if there is none; it lists the names.
        """
        for found in self.layers:
            if found.name == name:
                return found
        names = ", ".join(layer.name for layer in self.layers)
        raise GemmError(f"the plan has no layer {name!r}; it has {names or 'none'}. Name one of them.")
