"""Wang's GeMM: one direction is a ring of neighbour shifts beside partial products, the other one whole collective.

MeshSlice, section 2.3.4 (Wang et al., ASPLOS 2023). The ring may run along the rows or along the columns. A ring of P
chips has P products, or fewer and larger ones when it is unrolled to a number of iterations that divides P (section
4.2): an iteration then takes P / iterations shards at once. Along the ring

    OS  A's shards pass by (ring of columns) and are multiplied each with its part of the gathered B, or B's by A
    LS  along rows, B's shards pass by and give parts of C; along columns, C's sums pass by and take up products
    RS  as LS, mirrored

With `bidirectional`, one half of each shard or sum goes round the other way (see `rings.Stream`).

Dims: M rows of the product, N its columns, K the dim that is summed over; k, n: of one iteration.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.cluster import Axis
from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.products.sized_product import size_shards
from jaxquard.gemm.algorithms.transfers.rings import Stream, all_gather, axes_size, interleave, reduce_scatter, streams
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow


def wang(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`."""
    mesh_shape = axes_size(product.rows), axes_size(product.columns)
    ring = options.ring or size_shards(lhs, rhs, product, mesh_shape=mesh_shape).longer_ring(mesh_shape)
    match product.dataflow, ring:
        case Dataflow.OS, Axis.COLUMNS:
            return _pass_lhs(lhs, rhs, product, options)
        case Dataflow.OS, Axis.ROWS:
            return _pass_lhs(rhs, lhs, product.mirrored(), options)
        case Dataflow.LS, Axis.COLUMNS:
            return _pass_out(lhs, rhs, product, options)
        case Dataflow.LS, Axis.ROWS:
            return _pass_rhs(lhs, rhs, product, options)
        case _:
            return wang(rhs, lhs, product.mirrored(), replace(options, ring=ring).exchanged())


def _pass_lhs(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """OS: the ring is the columns."""
    layout, chips = product.layout, axes_size(product.columns)
    lhs_dim, rhs_dim = layout.lhs.index("K"), layout.rhs.index("K")
    rhs_KN = all_gather(rhs, product.rows, dim=rhs_dim)
    ways = streams(product.columns, lhs.shape[lhs_dim], bidirectional=options.bidirectional)
    passing, out_MN = [way.own(lhs, dim=lhs_dim) for way in ways], None
    for turns in _groups(chips, options.slices):
        seen_Mk, passing = _gather_group(passing, ways, turns, chips)
        lhs_Mk = jnp.concatenate(seen_Mk, axis=lhs_dim)
        rhs_kN = jnp.concatenate([way.piece(rhs_KN, turn, dim=rhs_dim) for turn in turns for way in ways], axis=rhs_dim)
        partial_MN = layout.dot(lhs_Mk, rhs_kN)
        out_MN = partial_MN if out_MN is None else out_MN + partial_MN
    assert out_MN is not None
    return out_MN.astype(layout.rounded(lhs.dtype))


def _pass_rhs(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """LS: the ring is the rows; the sums are scattered when all of them are there."""
    layout, chips = product.layout, axes_size(product.rows)
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    ways = streams(product.rows, rhs.shape[rhs_dim], bidirectional=options.bidirectional)
    passing, partials = [way.own(rhs, dim=rhs_dim) for way in ways], []
    for turns in _groups(chips, options.slices):
        seen_Kn, passing = _gather_group(passing, ways, turns, chips)
        partial_Mn = layout.dot(lhs, jnp.concatenate(seen_Kn, axis=rhs_dim)).astype(layout.rounded(lhs.dtype))
        partials += _split(partial_Mn, ways, turns, dim=out_dim)
    by_way = [way.in_order(partials[number :: len(ways)], dim=out_dim) for number, way in enumerate(ways)]
    return reduce_scatter(
        interleave(by_way, chips, dim=out_dim), product.columns, dim=out_dim, dtype=layout.rounded(lhs.dtype)
    )


def _pass_out(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """LS: the ring is the columns; a sum starts one chip after its own and is complete when it comes home."""
    layout, chips = product.layout, axes_size(product.columns)
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    rhs_KN = all_gather(rhs, product.rows, dim=rhs_dim)
    ways = streams(product.columns, rhs_KN.shape[rhs_dim] // chips, bidirectional=options.bidirectional)
    totals: list[jax.Array] = []
    for turns in _groups(chips, options.slices):
        pieces = [way.piece(rhs_KN, turn + 1, dim=rhs_dim) for turn in turns for way in ways]
        partial_Mn = layout.dot(lhs, jnp.concatenate(pieces, axis=rhs_dim))
        parts = _split(partial_Mn, ways, turns, dim=out_dim)
        for first in range(0, len(parts), len(ways)):
            added = parts[first : first + len(ways)]
            if totals:
                passed = [
                    way.shift(total.astype(layout.rounded(lhs.dtype))) for way, total in zip(ways, totals, strict=True)
                ]
                added = [total.astype(part.dtype) + part for total, part in zip(passed, added, strict=True)]
            totals = added
    return jnp.concatenate(totals, axis=out_dim).astype(layout.rounded(lhs.dtype))


def _gather_group(
    passing: list[jax.Array], ways: tuple[Stream, ...], turns: range, chips: int
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Returns the pieces that pass by in an iteration, and those after it; the last turn sends nothing."""
    seen = []
    for turn in turns:
        seen += passing
        if turn + 1 < chips:
            passing = [way.shift(piece) for way, piece in zip(ways, passing, strict=True)]
    return seen, passing


def _split(partial: jax.Array, ways: tuple[Stream, ...], turns: range, *, dim: int) -> list[jax.Array]:
    """Splits a product into its parts, turn by turn and stream by stream."""
    ends = np.cumsum([way.width for _ in turns for way in ways])
    return jnp.split(partial, ends[:-1], axis=dim)


def _groups(chips: int, iterations: int | None) -> list[range]:
    """Returns the turns of a ring, iteration by iteration."""
    size = chips // (iterations or chips)
    return [range(start, start + size) for start in range(0, chips, size)]
