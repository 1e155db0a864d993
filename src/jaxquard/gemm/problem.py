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


class Dataflow(enum.Enum):
    """Which of A, B and C = A B stays where it is."""

    OS = "os"
    LS = "ls"
    RS = "rs"


class Stationary(enum.Enum):
    """Which matrix of a layer Y = X W stays where it is, forward and backward: the rows of Table 1."""

    Y = "y"
    X = "x"
    W = "w"

    @property
    def dataflows(self) -> tuple[Dataflow, Dataflow, Dataflow]:
        """Of the products forward, backward for X, backward for W."""
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
    """A fully connected layer: W has `in_features` rows and `out_features` columns."""

    name: str
    in_features: int
    out_features: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """The fully connected layers of one block, in order, trained on `num_rows` rows (batch times sequence) a step.

    Attributes:
        num_blocks: how many such blocks the model has.
        item_bytes: bytes of an element of the matrices that move.
    """

    layers: tuple[FcLayer, ...]
    num_rows: int
    num_blocks: int = 1
    item_bytes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """How one layer is multiplied.

    Attributes:
        is_transposed: all matrices transposed, and the two that move along the other directions.
        slices: the number of slices of the products forward, backward for X, backward for W.
        block: how many neighbouring columns or rows a slice takes at a time.
    """

    name: str
    stationary: Stationary
    is_transposed: bool = False
    slices: tuple[int, int, int] = (1, 1, 1)
    block: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPlan:
    """How the layers of a problem are multiplied on a mesh.

    Attributes:
        algorithm: its name: "meshslice", "collective", "wang", "summa", "cannon".
        mesh_shape: rows and columns of chips.
    """

    algorithm: str
    mesh_shape: tuple[int, int]
    layers: tuple[LayerPlan, ...] = field(default=())

    def layer(self, name: str) -> LayerPlan:
        """The plan of the layer with this name."""
        for found in self.layers:
            if found.name == name:
                return found
        raise KeyError(f"the plan has no layer {name!r}; it has {', '.join(layer.name for layer in self.layers)}.")
