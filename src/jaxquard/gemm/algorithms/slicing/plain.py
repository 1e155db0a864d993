"""MeshSlice with one product a slice (section 3.1, Figure 5).

An `optimization_barrier` lets a gather start only when the one before has arrived and the product before that is done,
so that a chip holds two gathered slices at most, never all S. With one slice this is `collective`.

Dims: M rows of the product, N its columns, K the dim that is summed over; k, n: of one slice.
"""

import jax
from jax import lax

from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.slicing.blocked_slices import BlockedSlices, slices_of, widest_block
from jaxquard.gemm.algorithms.slicing.slice_loop import run_slices
from jaxquard.gemm.algorithms.transfers.rings import all_gather, axes_size, reduce_scatter
from jaxquard.gemm.problem import AlgorithmOptions


def output_stationary(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies in OS: the next slices of A and B travel beside a product."""
    layout, slices = product.layout, options.slices or 1
    lhs_dim, rhs_dim = layout.lhs.index("K"), layout.rhs.index("K")
    lhs_slices = slices_of(lhs, dim=lhs_dim, slices=slices, block=options.block)
    rhs_slices = slices_of(rhs, dim=rhs_dim, slices=slices, block=options.block)

    lhs_blocks, rhs_blocks = lhs_slices.blocks(lhs), rhs_slices.blocks(rhs)

    def gather(lhs_slice: jax.Array, rhs_slice: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (
            all_gather(lhs_slice, product.columns, dim=lhs_dim),
            all_gather(rhs_slice, product.rows, dim=rhs_dim),
        )

    def step(s: int | jax.Array, carry: tuple) -> tuple:
        here, out_MN = carry
        following = lhs_slices.take(lhs_blocks, s + 1), rhs_slices.take(rhs_blocks, s + 1)
        (following, out_MN), here = lax.optimization_barrier(((following, out_MN), here))
        return gather(*following), add(out_MN, layout.dot(*here))

    first = gather(lhs_slices.take(lhs_blocks, 0), rhs_slices.take(rhs_blocks, 0))
    here, out_MN = run_slices(step, (first, None), slices=slices)
    if out_MN is None:
        return layout.dot(*here, is_rounded=True)
    return (out_MN + layout.dot(*here)).astype(layout.rounded(lhs.dtype))


def left_stationary(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies in LS: B's next slice and the sums of the slice before travel beside a product."""
    layout, slices = product.layout, options.slices or 1
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    rhs_slices, out_slices = slices_along_columns(rhs, product, slices)
    rhs_blocks = rhs_slices.blocks(rhs)

    def scatter(partial_Mn: jax.Array) -> jax.Array:
        return reduce_scatter(partial_Mn, product.columns, dim=out_dim, dtype=layout.rounded(lhs.dtype))

    def step(s: int | jax.Array, carry: tuple) -> tuple:
        rhs_Kn, finished_Mn, out = carry
        following = rhs_slices.take(rhs_blocks, s + 1)
        following, rhs_Kn, finished_Mn = lax.optimization_barrier((following, rhs_Kn, finished_Mn))
        coming_Kn = all_gather(following, product.rows, dim=rhs_dim)
        # Kept until the next product runs, so in the dtype in which it travels.
        partial_Mn = layout.dot(lhs, rhs_Kn).astype(layout.rounded(lhs.dtype))
        if finished_Mn is not None:
            out = out_slices.place(out, scatter(finished_Mn), s - 1)
        return coming_Kn, partial_Mn, out

    first_Kn = all_gather(rhs_slices.take(rhs_blocks, 0), product.rows, dim=rhs_dim)
    if slices == 1:
        return scatter(layout.dot(lhs, first_Kn, is_rounded=True))
    out = out_slices.empty(lhs.shape[layout.lhs.index("M")], layout.rounded(lhs.dtype))
    rhs_Kn, finished_Mn, out = run_slices(step, (first_Kn, None, out), slices=slices)
    partial_Mn = layout.dot(lhs, rhs_Kn).astype(layout.rounded(lhs.dtype))
    out = out_slices.place(out, scatter(finished_Mn), slices - 2)
    return out_slices.join(out_slices.place(out, scatter(partial_Mn), slices - 1))


def slices_along_columns(rhs: jax.Array, product: Product, slices: int) -> tuple[BlockedSlices, BlockedSlices]:
    """Returns the slices along N of a chip's shards of B and C, in LS."""
    layout, mesh_shape = product.layout, (axes_size(product.rows), axes_size(product.columns))
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    size = rhs.shape[rhs_dim] * mesh_shape[0]
    block = widest_block(size, slices=slices, mesh_shape=mesh_shape)
    return (
        slices_of(rhs, dim=rhs_dim, slices=slices, block=block),
        BlockedSlices(dim=out_dim, size=size // mesh_shape[1], slices=slices, block=block),
    )


def add(total: jax.Array | None, more: jax.Array) -> jax.Array:
    """Returns the sum of what there is and more."""
    return more if total is None else total + more
