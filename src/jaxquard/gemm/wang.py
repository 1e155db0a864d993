"""Wang's GeMM: one direction is a ring of neighbour shifts beside partial products, the other one whole collective.

MeshSlice, section 2.3.4 (Wang et al., ASPLOS 2023). The ring may run along the rows or along the columns. A ring of P
chips has P products, or fewer and larger ones when it is unrolled to a number of iterations that divides P (section
4.2): an iteration then takes P / iterations shards at once. Along the ring

    OS  A's shards pass by (ring of columns) and are multiplied each with its part of the gathered B, or B's by A
    LS  along rows, B's shards pass by and give parts of C; along columns, C's sums pass by and take up products
    RS  as LS, mirrored

Dims: M rows of the product, N its columns, K the dim that is summed over; k, n: of one iteration.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.gemm.problem import Dataflow
from jaxquard.gemm.product import Axes, Product
from jaxquard.gemm.rings import all_gather, reduce_scatter, ring_index, ring_size, shift
from jaxquard.gemm.sizes import choose_ring, global_sizes


def wang(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`."""
    ring = choose_ring(product, global_sizes(lhs, rhs, product), ring_size(product.rows), ring_size(product.columns))
    match product.dataflow, ring == product.columns:
        case Dataflow.OS, True:
            return _pass_lhs(lhs, rhs, product)
        case Dataflow.OS, False:
            return _pass_lhs(rhs, lhs, product.mirrored())
        case Dataflow.LS, True:
            return _pass_out(lhs, rhs, product)
        case Dataflow.LS, False:
            return _pass_rhs(lhs, rhs, product)
        case _:
            return wang(rhs, lhs, replace(product, ring=ring).mirrored())


def _pass_lhs(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    """OS: the ring is the columns."""
    layout, chips = product.layout, ring_size(product.columns)
    lhs_dim, rhs_dim = layout.lhs.index("K"), layout.rhs.index("K")
    rhs_KN = all_gather(rhs, product.rows, dim=rhs_dim)
    out_MN = None
    for turns in _groups(chips, product.slices):
        passing = []
        for turn in turns:
            passing.append(lhs)
            lhs = shift(lhs, product.columns) if turn + 1 < chips else lhs
        lhs_Mk = jnp.concatenate(passing, axis=lhs_dim)
        rhs_kN = _parts(rhs_KN, turns, product.columns, dim=rhs_dim)
        partial_MN = layout.dot(lhs_Mk, rhs_kN)
        out_MN = partial_MN if out_MN is None else out_MN + partial_MN
    assert out_MN is not None
    return out_MN.astype(lhs.dtype)


def _pass_rhs(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    """LS: the ring is the rows; the sums are scattered when all of them are there."""
    layout, chips = product.layout, ring_size(product.rows)
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    partials = []
    for turns in _groups(chips, product.slices):
        passing = []
        for turn in turns:
            passing.append(rhs)
            rhs = shift(rhs, product.rows) if turn + 1 < chips else rhs
        partials.append(layout.dot(lhs, jnp.concatenate(passing, axis=rhs_dim)))
    partial_MN = jnp.concatenate(partials, axis=out_dim)
    if chips > 1:
        width = partial_MN.shape[out_dim] // chips
        partial_MN = jnp.roll(partial_MN, ring_index(product.rows) * width, axis=out_dim)
    return reduce_scatter(partial_MN, product.columns, dim=out_dim, dtype=lhs.dtype)


def _pass_out(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    """LS: the ring is the columns; a sum starts one chip after its own and is complete when it comes home."""
    layout, chips = product.layout, ring_size(product.columns)
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    rhs_KN = all_gather(rhs, product.rows, dim=rhs_dim)
    total = None
    for turns in _groups(chips, product.slices):
        rhs_Kn = _parts(rhs_KN, [turn + 1 for turn in turns], product.columns, dim=rhs_dim)
        for part in jnp.split(layout.dot(lhs, rhs_Kn), len(turns), axis=out_dim):
            if total is not None:
                part = shift(total.astype(lhs.dtype), product.columns).astype(part.dtype) + part
            total = part
    assert total is not None
    return total.astype(lhs.dtype)


def _groups(chips: int, iterations: int | None) -> list[range]:
    """The turns of a ring, iteration by iteration."""
    size = chips // (iterations or chips)
    return [range(start, start + size) for start in range(0, chips, size)]


def _parts(matrix: jax.Array, turns: list[int] | range, axes: Axes, *, dim: int) -> jax.Array:
    """Of a matrix cut over a ring, the parts of the chips that are so many places after this one."""
    chips = ring_size(axes)
    if chips == 1:
        return matrix
    width = matrix.shape[dim] // chips
    first = ring_index(axes)
    return jnp.concatenate(
        [lax.dynamic_slice_in_dim(matrix, (first + turn) % chips * width, width, axis=dim) for turn in turns], axis=dim
    )
