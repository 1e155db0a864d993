"""SUMMA: a loop of broadcasts, products and reductions (MeshSlice, section 2.3.3, Figure 2a).

The sliced dim is cut into P parts, P being a common multiple of the mesh's rows and columns; part p belongs to the chip
row and the chip column that hold it. P is the least that the number of iterations divides too: unrolled (section 4.2),
an iteration broadcasts several parts and multiplies them at once.

Dims: M rows of the product, N its columns, K the dim that is summed over; k, n: of one iteration.
"""

import math

import jax
import jax.numpy as jnp

from jaxquard.gemm.algorithms.product import Axes, Product
from jaxquard.gemm.algorithms.ring_broadcast import broadcast, reduce
from jaxquard.gemm.algorithms.rings import ring_index, ring_size
from jaxquard.gemm.problem import Dataflow


def num_parts(product: Product, *, num_rows: int, num_columns: int) -> int:
    """P, into which the sliced dim is cut."""
    return math.lcm(num_rows, num_columns, product.slices or 1)


def summa(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`."""
    match product.dataflow:
        case Dataflow.OS:
            return _output_stationary(lhs, rhs, product)
        case Dataflow.LS:
            return _left_stationary(lhs, rhs, product)
        case Dataflow.RS:
            return summa(rhs, lhs, product.mirrored())


def _output_stationary(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    layout, out_MN = product.layout, None
    for parts in _iterations(product):
        lhs_Mk = _broadcast_parts(lhs, parts, product, product.columns, dim=layout.lhs.index("K"))
        rhs_kN = _broadcast_parts(rhs, parts, product, product.rows, dim=layout.rhs.index("K"))
        partial_MN = layout.dot(lhs_Mk, rhs_kN)
        out_MN = partial_MN if out_MN is None else out_MN + partial_MN
    assert out_MN is not None
    return out_MN.astype(lhs.dtype)


def _left_stationary(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    layout = product.layout
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    chips, column = ring_size(product.columns), ring_index(product.columns)
    mine: list[jax.Array | None] = [None] * (_num_parts(product) // chips)
    for parts in _iterations(product):
        partial_Mn = layout.dot(lhs, _broadcast_parts(rhs, parts, product, product.rows, dim=rhs_dim))
        for part, partial in zip(parts, jnp.split(partial_Mn, len(parts), axis=out_dim), strict=True):
            root, place = divmod(part, len(mine))
            total = reduce(partial, product.columns, root=root, num_packets=product.num_packets, dtype=lhs.dtype)
            before = mine[place]
            mine[place] = total if before is None else jnp.where(column == root, total, before)
    return jnp.concatenate([part for part in mine if part is not None], axis=out_dim)


def _num_parts(product: Product) -> int:
    return num_parts(product, num_rows=ring_size(product.rows), num_columns=ring_size(product.columns))


def _iterations(product: Product) -> list[range]:
    """The parts of the sliced dim, iteration by iteration."""
    parts = _num_parts(product)
    size = parts // (product.slices or parts)
    return [range(start, start + size) for start in range(0, parts, size)]


def _broadcast_parts(shard: jax.Array, parts: range, product: Product, axes: Axes, *, dim: int) -> jax.Array:
    """Those parts of the matrix, each broadcast from the chip of the ring that holds it."""
    per_chip = _num_parts(product) // ring_size(axes)
    pieces = jnp.split(shard, per_chip, axis=dim)
    return jnp.concatenate(
        [
            broadcast(pieces[part % per_chip], axes, root=part // per_chip, num_packets=product.num_packets)
            for part in parts
        ],
        axis=dim,
    )
