"""The three products of a fully connected layer Y = X W in training, by Table 1 of MeshSlice (section 3.2.1).

Our matrices keep the order of dims in which the user wrote them, so where the table has a transposed matrix, ours is
cut the other way round, and where it gives a transposed result, ours is the mirrored dataflow on exchanged axes:

    stationary   Y = X W         X' = Y' W^T                    W' = X^T Y'                    cut: X, W, Y
    Y            OS(X, W)        LS(Y', W)                      RS(X, Y')                      rc, rc, rc
    X            LS(X, W^T)      OS(Y', W^T)                    LS of X^T, Y' on (c, r),       rc, cr, rc
                                                                the table's W'^T = RS(Y', X)
    W            RS(X^T, W)      RS of Y', W^T on (c, r),       OS(X^T, Y')                    cr, rc, rc
                                 the table's X'^T = LS(W, Y')

with rc: rows over the mesh's rows and columns over its columns; cr: the other way round. In each line one matrix (and
its gradient) stays put, and the other two move along the same direction in all three products.
"""

from dataclasses import dataclass

from jax.sharding import PartitionSpec

from jaxquard.gemm.algorithms.product import Axes, Layout, Product
from jaxquard.gemm.algorithms.shardings import lhs_spec, out_spec, rhs_spec
from jaxquard.gemm.problem import Dataflow, Stationary

Slices = tuple[int | None, int | None, int | None]
Rings = tuple[Axes | None, Axes | None, Axes | None]

# For each product its dataflow, and whether rows and columns are exchanged.
_TABLE_1 = {
    Stationary.Y: ((Dataflow.OS, False), (Dataflow.LS, False), (Dataflow.RS, False)),
    Stationary.X: ((Dataflow.LS, False), (Dataflow.OS, False), (Dataflow.LS, True)),
    Stationary.W: ((Dataflow.RS, False), (Dataflow.RS, True), (Dataflow.OS, False)),
}
# As arrays of the user: x[M,K] w[K,N]; y'[M,N] times w[K,N] over N; x[M,K] times y'[M,N] over M.
_LAYOUTS = (Layout(), Layout(lhs="MK", rhs="NK"), Layout(lhs="KM", rhs="KN"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProducts:
    """How a layer is multiplied, forward and backward."""

    algorithm: str
    forward: Product
    backward_data: Product
    backward_weight: Product

    @property
    def w_spec(self) -> PartitionSpec:
        """How w[K,N], as the user wrote it, is cut."""
        return rhs_spec(self.forward)

    def x_spec(self, ndim: int) -> PartitionSpec:
        """How x[...,K] is cut: the first of its dims and the last."""
        return _with_inner_dims(lhs_spec(self.forward), ndim)

    def y_spec(self, ndim: int) -> PartitionSpec:
        """How y[...,N] is cut."""
        return _with_inner_dims(out_spec(self.forward), ndim)


def layer_products(
    *,
    algorithm: str,
    stationary: Stationary,
    rows: Axes,
    columns: Axes,
    is_transposed: bool,
    slices: Slices,
    block: int,
    in_parts: bool,
    rings: Rings,
    both_ways: bool,
    num_packets: tuple[int, int, int],
) -> LayerProducts:
    """The products of a layer that keeps one matrix where it is.

    A ring is named by its axes, so it stays where rows and columns are exchanged.
    """
    forward, backward_data, backward_weight = (
        Product(
            dataflow=dataflow,
            rows=columns if is_swapped != is_transposed else rows,
            columns=rows if is_swapped != is_transposed else columns,
            layout=layout,
            slices=count,
            block=block,
            in_parts=in_parts,
            ring=ring,
            both_ways=both_ways,
            num_packets=packets,
        )
        for (dataflow, is_swapped), layout, count, ring, packets in zip(
            _TABLE_1[stationary], _LAYOUTS, slices, rings, num_packets, strict=True
        )
    )
    return LayerProducts(
        algorithm=algorithm, forward=forward, backward_data=backward_data, backward_weight=backward_weight
    )


def _with_inner_dims(spec: PartitionSpec, ndim: int) -> PartitionSpec:
    first, last = spec
    return PartitionSpec(first, *(None,) * (ndim - 2), last)
