"""MeshSlice: S partial collectives in both directions beside S partial products (section 3.1, Figure 5).

The loop is unrolled and double-buffered in every dataflow: the gathers of slice s + 1 are issued before the product of
slice s, and in LS and RS the reduce-scatter of slice s - 1 after it. An `optimization_barrier` lets a gather start
only when the one before has arrived and the product before that is done, so that a chip holds two gathered slices at
most, never all S. With one slice this is `collective`.

Dims: M rows of the product, N its columns, K the dim that is summed over; k, n: of one slice.
"""

import jax
from jax import lax

from jaxquard.gemm.blocked_slices import cut, join
from jaxquard.gemm.meshslice_halves import output_stationary_halves
from jaxquard.gemm.meshslice_pieces import left_stationary_pieces
from jaxquard.gemm.problem import Dataflow
from jaxquard.gemm.product import Product
from jaxquard.gemm.rings import all_gather, reduce_scatter


def meshslice(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`."""
    in_parts = product.in_parts and (product.slices or 1) > 1  # one slice has nothing to hide beside
    match product.dataflow:
        case Dataflow.OS:
            return (output_stationary_halves if in_parts else _output_stationary)(lhs, rhs, product)
        case Dataflow.LS:
            return (left_stationary_pieces if in_parts else _left_stationary)(lhs, rhs, product)
        case Dataflow.RS:
            return meshslice(rhs, lhs, product.mirrored())


def _output_stationary(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    layout, slices = product.layout, product.slices or 1
    lhs_dim, rhs_dim = layout.lhs.index("K"), layout.rhs.index("K")
    lhs_slices = cut(lhs, dim=lhs_dim, slices=slices, block=product.block)
    rhs_slices = cut(rhs, dim=rhs_dim, slices=slices, block=product.block)

    def gather(lhs_slice: jax.Array, rhs_slice: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (
            all_gather(lhs_slice, product.columns, dim=lhs_dim),
            all_gather(rhs_slice, product.rows, dim=rhs_dim),
        )

    out_MN, coming = None, gather(lhs_slices[0], rhs_slices[0])
    for s in range(slices):
        here = coming
        if s + 1 < slices:
            (*following, out_MN), here = lax.optimization_barrier(
                ((lhs_slices[s + 1], rhs_slices[s + 1], out_MN), here)
            )
            coming = gather(*following)
        lhs_Mk, rhs_kN = here
        partial_MN = layout.dot(lhs_Mk, rhs_kN)
        out_MN = partial_MN if out_MN is None else out_MN + partial_MN
    assert out_MN is not None
    return out_MN.astype(lhs.dtype)


def _left_stationary(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    layout, slices = product.layout, product.slices or 1
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    rhs_slices = cut(rhs, dim=rhs_dim, slices=slices, block=product.block)

    def scatter(partial_Mn: jax.Array) -> jax.Array:
        return reduce_scatter(partial_Mn, product.columns, dim=out_dim, dtype=lhs.dtype)

    done, partial_Mn, coming = [], None, all_gather(rhs_slices[0], product.rows, dim=rhs_dim)
    for s in range(slices):
        rhs_Kn, finished_Mn = coming, partial_Mn
        if s + 1 < slices:
            following, rhs_Kn, finished_Mn = lax.optimization_barrier((rhs_slices[s + 1], rhs_Kn, finished_Mn))
            coming = all_gather(following, product.rows, dim=rhs_dim)
        # Kept until the next product runs, so in the dtype in which it travels.
        partial_Mn = layout.dot(lhs, rhs_Kn).astype(lhs.dtype)
        if finished_Mn is not None:
            done.append(scatter(finished_Mn))
    assert partial_Mn is not None
    return join([*done, scatter(partial_Mn)], dim=out_dim, block=product.block)
