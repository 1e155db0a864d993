"""The 1D baselines: all chips of the mesh as one ring, with Wang's overlap along it (MeshSlice, section 4.3).

Both are the 2D dataflows on a mesh of one row or of one column, so that nothing moves in the other direction:

    1d_tp   one row of chips. A W-stationary layer is 1D tensor parallelism with sequence parallelism: x[M,K] is
            sharded by rows (M) and gathered, w[K,N] is sharded by N, y[M,N] by N; and the transposed form is the layer
            after it: x is sharded by K, w by K, and y is scattered by rows. With one row nothing moves from row to row,
            so in a Y- or X-stationary layer W is stationary, too: x and y are both sharded by features, and x is
            gathered or y scattered.
    fsdp    one column of chips. A Y-stationary (or X-stationary) layer is fully sharded data parallelism: x and y are
            sharded by rows, w by K (or by N) and gathered forward and backward, and its gradient is scattered.

The transposed forms of the latter are the other one of the two. The product is `wang`'s, on a ring of the whole mesh.
"""

from jaxquard.gemm.algorithms.products.product import Axes


def one_row(rows: Axes, columns: Axes) -> tuple[Axes, Axes]:
    """Returns the mesh as one row of chips."""
    return (), (*rows, *columns)


def one_column(rows: Axes, columns: Axes) -> tuple[Axes, Axes]:
    """Returns the mesh as one column of chips."""
    return (*rows, *columns), ()
