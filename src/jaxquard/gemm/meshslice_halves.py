"""Output-stationary MeshSlice whose partial products come in two halves, each tied to the gather of one direction.

A TPU's compiler hides one collective behind one product, so of the two gathers of a slice it hides one at best. Here
each product is cut along M into two halves, and `optimization_barrier` ties one gather to each: it may start when the
half before is done, and must be done before the next half starts. With S = 4 all 6 gathers hide on v5e:4x8, where the
plain form hides 3 (design decision 10); without the second tie, 5 did. For LS and RS see `meshslice_pieces`.

Dims: M rows of the product, N its columns, K the dim that is summed over; m: of one half; k: of one slice.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.gemm.blocked_slices import cut
from jaxquard.gemm.product import Product
from jaxquard.gemm.rings import all_gather


def output_stationary_halves(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    """A's next slice travels beside the first half of a product, B's beside the second."""
    layout, slices = product.layout, product.slices or 1
    lhs_dim, rhs_dim = layout.lhs.index("K"), layout.rhs.index("K")
    lhs_slices = cut(lhs, dim=lhs_dim, slices=slices, block=product.block)
    rhs_slices = cut(rhs, dim=rhs_dim, slices=slices, block=product.block)
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
