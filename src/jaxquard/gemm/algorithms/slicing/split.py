"""MeshSlice with the product of each slice split for a TPU's compiler, which hides one collective behind one product.

OS      Two halves along M, each tied to the gather of one direction by `optimization_barrier`: it may start when the
        half before is done, and must be done before the next half starts. The whole gathered A goes through the
        barrier and a product takes its half of it: a half that goes through is copied. The last slice has nothing to
        hide, so it is one product, which adds both halves and rounds.
LS, RS  The compiler hides no reduce-scatter behind a product, but neighbour permutes. So the sums of a slice go round
        a ring in two streams (`ring_streams`), the upper half of the rows of C forward and the lower half backward,
        and a product makes the next term of a sum where it passes: the permute of one stream runs beside the product
        of the other, and the sum that arrives is added in the product's epilogue. A barrier keeps that order: a
        product waits for the one before it and for the sum that it adds. The gather of the next slice runs beside all
        of them. The last product of a stream writes the shard of C: nothing is concatenated.

So all transfers but the first gathers hide. On v5e:4x8 as 8x4, (M, K, N) = (16384, 12288, 12288) in bf16, S = 4, libtpu
0.0.42.1 estimates in thousands of cycles, products and elementwise work:

            Collective      split
    OS      1222 + 0        1205 + 165, of which 82 lay A out anew: none if a slice of A is one block
    LS      1200 + 0        1344 + 42
    RS      1209 + 154      1462 + 55

A product of LS and RS is as wide as one chip's part of a slice, n / P. Parts narrower than about 256 do not fill the
chip: at 128 a product takes 3 times its share. `split_work` has the sizes.

One slice starts one all-gather in each direction, or in LS and RS one all-gather and 2 (P - 1) permutes, P chips along
the ring. Each is an operation of one compiled program (`async-collective-start`, `collective-permute-start`) with its
done later in the same schedule; no host launch stands between them, and the compiler estimates cycles for neither.

Dims: M rows of the product, N its columns, K the dim that is summed over; k, n: of one slice; m: of one half.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.slicing.blocked_slices import BlockedSlices, slices_of
from jaxquard.gemm.algorithms.slicing.plain import add, slices_along_columns
from jaxquard.gemm.algorithms.slicing.slice_loop import run_slices
from jaxquard.gemm.algorithms.transfers.ring_streams import RingStream, ring_streams
from jaxquard.gemm.algorithms.transfers.rings import all_gather
from jaxquard.gemm.problem import AlgorithmOptions


class _Halves(NamedTuple):
    """Two gathered slices, and the two halves along M of the sum so far."""

    lhs_Mk: jax.Array
    rhs_kN: jax.Array
    upper_mN: jax.Array | None
    lower_mN: jax.Array | None


def output_stationary_halves(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies in OS: A's next slice travels beside the first half of a product, B's beside the second."""
    layout, slices = product.layout, options.slices or 1
    lhs_dim, rhs_dim = layout.lhs.index("K"), layout.rhs.index("K")
    lhs_slices = slices_of(lhs, dim=lhs_dim, slices=slices, block=options.block)
    rhs_slices = slices_of(rhs, dim=rhs_dim, slices=slices, block=options.block)
    lhs_blocks, rhs_blocks = lhs_slices.blocks(lhs), rhs_slices.blocks(rhs)
    num_rows = lhs.shape[1 - lhs_dim]
    half = num_rows // 2

    def step(s: int | jax.Array, carry: _Halves) -> _Halves:
        following, carry = lax.optimization_barrier((lhs_slices.take(lhs_blocks, s + 1), carry))
        coming_Mk = all_gather(following, product.columns, dim=lhs_dim)
        upper_mk = lax.slice_in_dim(carry.lhs_Mk, 0, half, axis=1 - lhs_dim)
        upper_mN = add(carry.upper_mN, layout.dot(upper_mk, carry.rhs_kN))
        following, upper_mN, coming_Mk, lhs_Mk, rhs_kN = lax.optimization_barrier(
            (rhs_slices.take(rhs_blocks, s + 1), upper_mN, coming_Mk, carry.lhs_Mk, carry.rhs_kN)
        )
        coming_kN = all_gather(following, product.rows, dim=rhs_dim)
        lower_mk = lax.slice_in_dim(lhs_Mk, half, num_rows, axis=1 - lhs_dim)
        lower_mN = add(carry.lower_mN, layout.dot(lower_mk, rhs_kN))
        lower_mN, coming_kN, coming_Mk = lax.optimization_barrier((lower_mN, coming_kN, coming_Mk))
        return _Halves(coming_Mk, coming_kN, upper_mN, lower_mN)

    first_Mk = all_gather(lhs_slices.take(lhs_blocks, 0), product.columns, dim=lhs_dim)
    first_kN = all_gather(rhs_slices.take(rhs_blocks, 0), product.rows, dim=rhs_dim)
    last = run_slices(step, _Halves(first_Mk, first_kN, None, None), slices=slices)
    total_MN = jnp.concatenate([last.upper_mN, last.lower_mN], axis=layout.out.index("M"))
    return (total_MN + layout.dot(last.lhs_Mk, last.rhs_kN)).astype(layout.rounded(lhs.dtype))


def left_stationary_streams(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies in LS: B's next slice and the sums of C travel beside the products of a slice."""
    layout, slices = product.layout, options.slices or 1
    rhs_dim, lhs_dim = layout.rhs.index("N"), layout.lhs.index("M")
    rhs_slices, out_slices = slices_along_columns(rhs, product, slices)
    rhs_blocks = rhs_slices.blocks(rhs)
    streams = ring_streams(product.columns, lhs.shape[lhs_dim])
    sums = _Sums(
        lhs=lhs,
        product=product,
        out_slices=out_slices,
        streams=tuple((stream, stream.destinations()) for stream in streams),
        names=map("transfer{}".format, itertools.count()),
    )

    def step(s: int | jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        following, rhs_Kn = lax.optimization_barrier((rhs_slices.take(rhs_blocks, s + 1), carry[0]))
        coming_Kn = all_gather(following, product.rows, dim=rhs_dim)
        return lax.optimization_barrier((coming_Kn, multiply_slice(sums, rhs_Kn, carry[1], s)))

    first_Kn = all_gather(rhs_slices.take(rhs_blocks, 0), product.rows, dim=rhs_dim)
    out = out_slices.empty(lhs.shape[lhs_dim], layout.rounded(lhs.dtype))
    last_Kn, out = run_slices(step, (first_Kn, out), slices=slices)
    return out_slices.join(multiply_slice(sums, last_Kn, out, slices - 1))


class _Sums(NamedTuple):
    """The left matrix, and the streams that take the sums of its products to their places.

    Attributes:
        streams: with each one the numbers of its destinations.
        names: of the scope in which the permutes of a slice appear in the compiled program, slice after slice.
    """

    lhs: jax.Array
    product: Product
    out_slices: BlockedSlices
    streams: Sequence[tuple[RingStream, jax.Array]]
    names: Iterator[str]


def multiply_slice(sums: _Sums, rhs_Kn: jax.Array, out: jax.Array, s: int | jax.Array) -> jax.Array:
    """Multiplies a gathered slice of B, and places this chip's part of C's slice in `out`.

    In each turn, each stream adds a term to the sum that passes. Its permute starts when the next product does.
    """
    name, num_chips = next(sums.names), sums.streams[0][0].num_chips
    arrived: list[jax.Array | None] = [None] * len(sums.streams)
    leaving, sender = None, 0
    for turn in range(num_chips):
        for number in range(len(sums.streams)):
            leaving, arrived[number], rhs_Kn = lax.optimization_barrier((leaving, arrived[number], rhs_Kn))
            if leaving is not None:
                with jax.named_scope(name):
                    arrived[sender] = sums.streams[sender][0].send(leaving)
            if turn + 1 < num_chips:
                leaving, sender = _add_term(sums, number, rhs_Kn, arrived[number], turn), number
            else:
                leaving, out = None, _place_last(sums, number, rhs_Kn, arrived[number], out, s)
    return out


def _add_term(
    sums: _Sums, number: int, rhs_Kn: jax.Array, arrived_mn: jax.Array | None, turn: int, block: int | None = None
) -> jax.Array:
    """Returns the sum of a stream that passes in a turn with this chip's term; of one block, if there is one."""
    layout, widths = sums.product.layout, sums.out_slices.block_widths
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    stream, destinations = sums.streams[number]
    start, width = (0, sum(widths)) if block is None else (sum(widths[:block]), widths[block])
    first = lax.index_in_dim(destinations, turn, keepdims=False) * sum(widths) + start
    rhs_Kp = lax.dynamic_slice_in_dim(rhs_Kn, first, width, axis=rhs_dim)
    total_mn = layout.dot(stream.own(sums.lhs, dim=layout.lhs.index("M")), rhs_Kp)
    if arrived_mn is not None:
        arrived_mn = lax.slice_in_dim(arrived_mn, start, start + width, axis=out_dim)
        total_mn = total_mn + arrived_mn.astype(total_mn.dtype)
    return total_mn.astype(layout.rounded(sums.lhs.dtype))


def _place_last(
    sums: _Sums, number: int, rhs_Kn: jax.Array, arrived_mn: jax.Array | None, out: jax.Array, s: int | jax.Array
) -> jax.Array:
    """Completes the sum of this chip and places it, block by block where the compiler can write it from a product."""
    stream, _ = sums.streams[number]
    for block in range(len(sums.out_slices.block_widths)):
        total_mn = _add_term(sums, number, rhs_Kn, arrived_mn, stream.num_chips - 1, block)
        out = sums.out_slices.place(out, total_mn, s, start=stream.start, block=block)
    return out
