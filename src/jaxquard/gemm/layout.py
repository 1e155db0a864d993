"""How the shards of a product's three matrices lie in memory, and the product of what one chip has.

The paper writes A^T or B^T where a matrix's rows are cut over the mesh's columns. We never transpose: a matrix keeps
the order of dims that its owner gave it, a `Layout` says which is which, and every step names the dim it means.

Dims: M rows of the product, N its columns, K the dim that is summed over.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

_MIRROR = str.maketrans("MN", "NM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order of the dims of the left and right matrix and of their product."""

    lhs: str = "MK"
    rhs: str = "KN"
    out: str = "MN"

    def mirrored(self) -> "Layout":
        """That of the same product with left and right exchanged: C^T = B^T A^T."""
        return Layout(lhs=self.rhs.translate(_MIRROR), rhs=self.lhs.translate(_MIRROR), out=self.out.translate(_MIRROR))

    def dot(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        """The product of two local matrices, in the dtype of `accumulator`."""
        contracted = (((self.lhs.index("K"),), (self.rhs.index("K"),)), ((), ()))
        if self.out == "NM":
            lhs, rhs = rhs, lhs
            contracted = (contracted[0][::-1], ((), ()))
        return lax.dot_general(lhs, rhs, contracted, preferred_element_type=accumulator(lhs.dtype))


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """In what sums are kept on a chip: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)
