"""SUMMA: a loop of broadcasts, products and reductions (MeshSlice, section 2.3.3, Figure 2a).

The sliced dim has P parts; part p belongs to the chip row and the chip column that hold it. P is the least common
multiple of the mesh's rows, its columns and the number of iterations: unrolled (section 4.2), an iteration broadcasts
several parts and multiplies them at once.

Dims: M rows of the product, N its columns, K the dim that is summed over; k, n: of one iteration.
"""

import math

import jax
import jax.numpy as jnp

from jaxquard.gemm.algorithms.products.product import Axes, Product
from jaxquard.gemm.algorithms.products.sized_product import MeshShape
from jaxquard.gemm.algorithms.transfers.ring_broadcast import broadcast, reduce
from jaxquard.gemm.algorithms.transfers.rings import axes_size, ring_index
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow


def num_parts(options: AlgorithmOptions, mesh_shape: MeshShape) -> int:
    """Returns P, the number of parts of the sliced dim."""
    return math.lcm(*mesh_shape, options.slices or 1)


def summa(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`."""
    match product.dataflow:
        case Dataflow.OS:
            return _output_stationary(lhs, rhs, product, options)
        case Dataflow.LS:
            return _left_stationary(lhs, rhs, product, options)
        case Dataflow.RS:
            return summa(rhs, lhs, product.mirrored(), options)


def _output_stationary(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    layout, out_MN = product.layout, None
    for parts in _iterations(product, options):
        lhs_Mk = _broadcast_parts(lhs, parts, product, options, product.columns, dim=layout.lhs.index("K"))
        rhs_kN = _broadcast_parts(rhs, parts, product, options, product.rows, dim=layout.rhs.index("K"))
        partial_MN = layout.dot(lhs_Mk, rhs_kN)
        out_MN = partial_MN if out_MN is None else out_MN + partial_MN
    assert out_MN is not None
    return out_MN.astype(layout.rounded(lhs.dtype))


def _left_stationary(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    layout = product.layout
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    chips, column = axes_size(product.columns), ring_index(product.columns)
    mine: list[jax.Array | None] = [None] * (_num_parts(product, options) // chips)
    for parts in _iterations(product, options):
        partial_Mn = layout.dot(lhs, _broadcast_parts(rhs, parts, product, options, product.rows, dim=rhs_dim))
        for part, partial in zip(parts, jnp.split(partial_Mn, len(parts), axis=out_dim), strict=True):
            root, place = divmod(part, len(mine))
            total = reduce(
                partial, product.columns, root=root, num_packets=options.num_packets, dtype=layout.rounded(lhs.dtype)
            )
            before = mine[place]
            mine[place] = total if before is None else jnp.where(column == root, total, before)
    return jnp.concatenate([part for part in mine if part is not None], axis=out_dim)


def _num_parts(product: Product, options: AlgorithmOptions) -> int:
    return num_parts(options, (axes_size(product.rows), axes_size(product.columns)))


def _iterations(product: Product, options: AlgorithmOptions) -> list[range]:
    """Returns the parts of the sliced dim, iteration by iteration."""
    parts = _num_parts(product, options)
    size = parts // (options.slices or parts)
    return [range(start, start + size) for start in range(0, parts, size)]


def _broadcast_parts(
    shard: jax.Array, parts: range, product: Product, options: AlgorithmOptions, axes: Axes, *, dim: int
) -> jax.Array:
    """Returns these parts of the matrix, each broadcast from the chip of the ring that holds it."""
    per_chip = _num_parts(product, options) // axes_size(axes)
    pieces = jnp.split(shard, per_chip, axis=dim)
    return jnp.concatenate(
        [
            broadcast(pieces[part % per_chip], axes, root=part // per_chip, num_packets=options.num_packets)
            for part in parts
        ],
        axis=dim,
    )
