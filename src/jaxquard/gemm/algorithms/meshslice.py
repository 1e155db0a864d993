"""MeshSlice: S partial collectives in both directions beside S partial products (section 3.1, Figure 5).

The loop is unrolled and double-buffered in every dataflow: the gathers of slice s + 1 are issued before the product of
slice s, and in LS and RS the reduce-scatter of slice s - 1 after it. An `optimization_barrier` lets a gather start
only when the one before has arrived and the product before that is done, so that a chip holds two gathered slices at
most, never all S. With one slice this is `collective`.

With `split_for_overlap` the partial products are split for a TPU's compiler, which hides one collective behind one
product (design decision 10):

    OS      two halves along M, each tied to the gather of one direction by `optimization_barrier`: it may start when
            the half before is done, and must be done before the next half starts. With S = 4 all 6 gathers hide on
            v5e:4x8, where the plain form hides 3; without the second tie, 5 did.
    LS, RS  as many pieces along M as the scatter has chips. By default the compiler hides no reduce-scatter behind a
            product. With options for it, some were hidden on v5e:4x8 for RS, at the price of gathers and of running out
            of VMEM at the default limit, and none for LS; but neighbour transfers hide. So the sums of slice s - 1
            travel as a `LineScatter`: step t runs beside piece t of the product of slice s, and the gather of slice
            s + 1 beside some pieces. `optimization_barrier` keeps that order: a step waits for the piece before it, a
            piece for the step before it.

Dims: M rows of the product, N its columns, K the dim that is summed over; k, n: of one slice; m: of one half or piece.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.transfers.line_scatter import LineScatter, Passing
from jaxquard.gemm.algorithms.transfers.rings import all_gather, reduce_scatter, ring_size
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow


def meshslice(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`."""
    is_split = options.split_for_overlap and (options.slices or 1) > 1  # one slice has nothing to hide beside
    match product.dataflow:
        case Dataflow.OS:
            return (output_stationary_halves if is_split else _output_stationary)(lhs, rhs, product, options)
        case Dataflow.LS:
            return (left_stationary_pieces if is_split else _left_stationary)(lhs, rhs, product, options)
        case Dataflow.RS:
            return meshslice(rhs, lhs, product.mirrored(), options)


def _output_stationary(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    layout, slices = product.layout, options.slices or 1
    lhs_dim, rhs_dim = layout.lhs.index("K"), layout.rhs.index("K")
    lhs_slices = split_slices(lhs, dim=lhs_dim, slices=slices, block=options.block)
    rhs_slices = split_slices(rhs, dim=rhs_dim, slices=slices, block=options.block)

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


def _left_stationary(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    layout, slices = product.layout, options.slices or 1
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    rhs_slices = split_slices(rhs, dim=rhs_dim, slices=slices, block=options.block)

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
    return join_slices([*done, scatter(partial_Mn)], dim=out_dim, block=options.block)


def output_stationary_halves(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies in OS: A's next slice travels beside the first half of a product, B's beside the second."""
    layout, slices = product.layout, options.slices or 1
    lhs_dim, rhs_dim = layout.lhs.index("K"), layout.rhs.index("K")
    lhs_slices = split_slices(lhs, dim=lhs_dim, slices=slices, block=options.block)
    rhs_slices = split_slices(rhs, dim=rhs_dim, slices=slices, block=options.block)
    lhs_Mk = all_gather(lhs_slices[0], product.columns, dim=lhs_dim)
    rhs_kN = all_gather(rhs_slices[0], product.rows, dim=rhs_dim)
    first_mN = second_mN = None
    for s in range(slices):
        coming_Mk = coming_kN = None
        if s + 1 < slices:
            following, lhs_Mk, rhs_kN, first_mN, second_mN = lax.optimization_barrier(
                (lhs_slices[s + 1], lhs_Mk, rhs_kN, first_mN, second_mN)
            )
            coming_Mk = all_gather(following, product.columns, dim=lhs_dim)
        upper_mk, lower_mk = _halves(lhs_Mk, dim=1 - lhs_dim)
        first_mN = _add(first_mN, layout.dot(upper_mk, rhs_kN))
        if s + 1 < slices:
            following, first_mN, coming_Mk, lower_mk, rhs_kN = lax.optimization_barrier(
                (rhs_slices[s + 1], first_mN, coming_Mk, lower_mk, rhs_kN)
            )
            coming_kN = all_gather(following, product.rows, dim=rhs_dim)
        second_mN = _add(second_mN, layout.dot(lower_mk, rhs_kN))
        if coming_Mk is not None and coming_kN is not None:
            second_mN, rhs_kN, lhs_Mk = lax.optimization_barrier((second_mN, coming_kN, coming_Mk))
    assert first_mN is not None
    assert second_mN is not None
    return jnp.concatenate([first_mN, second_mN], axis=layout.out.index("M")).astype(lhs.dtype)


def _halves(matrix: jax.Array, *, dim: int) -> Sequence[jax.Array]:
    size = matrix.shape[dim]
    return lax.split(matrix, (size // 2, size - size // 2), axis=dim)


def _add(total: jax.Array | None, more: jax.Array) -> jax.Array:
    return more if total is None else total + more


def left_stationary_pieces(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies in LS: B's next slice and the sums of the slice before travel beside the pieces of a product."""
    layout, slices = product.layout, options.slices or 1
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    rhs_slices = split_slices(rhs, dim=rhs_dim, slices=slices, block=options.block)
    lines = [LineScatter(axes=product.columns, dim=out_dim, name=f"transfer{s}") for s in range(slices)]
    done, before_Mn, coming = [], None, all_gather(rhs_slices[0], product.rows, dim=rhs_dim)
    for s in range(slices):
        rhs_Kn = coming
        if s + 1 < slices:
            following, rhs_Kn, before_Mn = lax.optimization_barrier((rhs_slices[s + 1], rhs_Kn, before_Mn))
            coming = all_gather(following, product.rows, dim=rhs_dim)
        partial_Mn, passing = _pieces(lhs, rhs_Kn, before_Mn, lines[s - 1], product)
        if before_Mn is not None:
            done.append(lines[s - 1].finish(before_Mn, passing))
        before_Mn = partial_Mn
        if s + 1 < slices:
            before_Mn, coming = lax.optimization_barrier((before_Mn, coming))
    assert before_Mn is not None
    return join_slices([*done, _scatter(before_Mn, lines[-1])], dim=out_dim, block=options.block)


def _pieces(
    lhs: jax.Array, rhs_Kn: jax.Array, before_Mn: jax.Array | None, line: LineScatter, product: Product
) -> tuple[jax.Array, Passing | None]:
    """Returns the product, and the sums of the slice before that have arrived once it is done."""
    layout, pieces, passing = product.layout, [], None
    parts = jnp.array_split(lhs, ring_size(product.columns), axis=layout.lhs.index("M"))
    for number, lhs_mK in enumerate(parts, start=1):
        has_step = before_Mn is not None and number <= line.num_steps
        if before_Mn is not None and has_step:
            passing = line.step(before_Mn, number, passing)
        piece_mn = layout.dot(lhs_mK, rhs_Kn).astype(lhs.dtype)
        if has_step:
            passing, piece_mn, rhs_Kn, before_Mn = lax.optimization_barrier((passing, piece_mn, rhs_Kn, before_Mn))
        pieces.append(piece_mn)
    return jnp.concatenate(pieces, axis=layout.out.index("M")), passing


def _scatter(partial_Mn: jax.Array, line: LineScatter) -> jax.Array:
    """Scatters the last slice's sums, which have no product left to run beside."""
    passing = None
    for number in range(1, line.num_steps + 1):
        passing = line.step(partial_Mn, number, passing)
    return line.finish(partial_Mn, passing)


def split_slices(shard: jax.Array, *, dim: int, slices: int, block: int) -> list[jax.Array]:
    """Splits a shard into its slices along `dim`, whose size `slices * block` divides unless there is one slice.

    Blocked slicing (section 3.1.2, Algorithm 2): slice s takes `block` neighbours out of every `slices * block`. Every
    chip takes the same ones of its shard, so an all-gather of them gives the same slice of the whole matrix, whatever
    the number of chips: so A and B may be sharded over different numbers of chips and still meet.
    """
    if slices == 1:
        return [shard]
    before, size, after = shard.shape[:dim], shard.shape[dim], shard.shape[dim + 1 :]
    assert size % (slices * block) == 0, (shard.shape, dim, slices, block)
    blocks = shard.reshape(*before, size // (slices * block), slices, block, *after)
    sliced = (*before, size // slices, *after)
    return [lax.index_in_dim(blocks, s, axis=dim + 1, keepdims=False).reshape(sliced) for s in range(slices)]


def join_slices(parts: Sequence[jax.Array], *, dim: int, block: int) -> jax.Array:
    """Joins slices to the shard that they come from."""
    if len(parts) == 1:
        return parts[0]
    before, size, after = parts[0].shape[:dim], parts[0].shape[dim], parts[0].shape[dim + 1 :]
    blocks = [part.reshape(*before, size // block, block, *after) for part in parts]
    return jnp.stack(blocks, axis=dim + 1).reshape(*before, size * len(parts), *after)
