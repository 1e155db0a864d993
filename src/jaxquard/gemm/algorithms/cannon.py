"""Cannon's algorithm: skew the shards, then shift and multiply P times (MeshSlice, section 2.3.2); square meshes only.

The skew moves row i of the mesh by i places, neighbour to neighbour and the shorter way round, so it takes P // 2
steps, in each of which the rows that are not there yet shift by one. Afterwards

    OS  chip (i, j) has A[i, i+j+t] and B[i+j+t, j] in turn t; both shift by one
    LS  chip (i, j) has B[i+j+t] and the sum of C[i, i+j+t] in turn t; both shift by one, and C is skewed back: after
        the last turn it is one place past the skew, so row i goes back by i - 1
    RS  as LS, mirrored

A shift by one goes one way round: Cannon cannot use both directions of a link.

Dims: M rows of the product, N its columns, K the dim that is summed over; k, n: of one chip.
"""

import jax

from jaxquard.gemm.algorithms.products.product import Axes, Product
from jaxquard.gemm.algorithms.transfers.rings import axes_size, permute, shift
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow


def cannon(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`; there are no options."""
    match product.dataflow:
        case Dataflow.OS:
            return _output_stationary(lhs, rhs, product)
        case Dataflow.LS:
            return _left_stationary(lhs, rhs, product)
        case Dataflow.RS:
            return cannon(rhs, lhs, product.mirrored(), options)


def _output_stationary(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    layout, chips = product.layout, axes_size(product.rows)
    lhs_Mk = skew(lhs, by=product.rows, along=product.columns)
    rhs_kN = skew(rhs, by=product.columns, along=product.rows)
    out_MN = layout.dot(lhs_Mk, rhs_kN)
    for _ in range(chips - 1):
        lhs_Mk, rhs_kN = shift(lhs_Mk, product.columns), shift(rhs_kN, product.rows)
        out_MN = out_MN + layout.dot(lhs_Mk, rhs_kN)
    return out_MN.astype(layout.rounded(lhs.dtype))


def _left_stationary(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    layout, chips = product.layout, axes_size(product.rows)
    rhs_Kn = skew(rhs, by=product.columns, along=product.rows)
    total_Mn = layout.dot(lhs, rhs_Kn)
    for _ in range(chips - 1):
        rhs_Kn = shift(rhs_Kn, product.rows)
        passed = shift(total_Mn.astype(layout.rounded(lhs.dtype)), product.columns)
        total_Mn = passed.astype(total_Mn.dtype) + layout.dot(lhs, rhs_Kn)
    return _move(
        total_Mn.astype(layout.rounded(lhs.dtype)),
        [1 - i for i in range(chips)],
        by=product.rows,
        along=product.columns,
    )


def skew(shard: jax.Array, *, by: Axes, along: Axes) -> jax.Array:
    """Gives the chips that are number i along `by` the shard i places further along `along`."""
    return _move(shard, list(range(axes_size(by))), by=by, along=along)


def _move(shard: jax.Array, distances: list[int], *, by: Axes, along: Axes) -> jax.Array:
    """Gives the chips that are number i along `by` the shard `distances[i]` places further along `along`.

    In each step some chips shift to a neighbour, by the shorter way, and the others keep what they have.
    """
    chips = axes_size(by)
    places = [distance % chips for distance in distances]
    left = [place if place <= chips // 2 else place - chips for place in places]
    while any(left):
        steps = [(rest > 0) - (rest < 0) for rest in left]
        pairs = [(i * chips + (j + steps[i]) % chips, i * chips + j) for i in range(chips) for j in range(chips)]
        shard = permute(shard, (*by, *along), pairs)
        left = [rest - step for rest, step in zip(left, steps, strict=True)]
    return shard
