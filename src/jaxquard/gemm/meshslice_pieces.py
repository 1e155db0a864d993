"""Left-stationary MeshSlice whose partial products come in pieces, each beside one step of the scatter before it.

By default a TPU's compiler hides no reduce-scatter behind a product. With options for it, some were hidden on v5e:4x8
for RS, at the price of gathers and of running out of VMEM at the default limit, and none for LS; but neighbour
transfers hide. So the sums of slice s - 1 travel as a `LineScatter`, and the product of slice s is cut along M into
as many pieces as the line has chips: step t runs beside piece t, and the gather of slice s + 1 beside some pieces.
`optimization_barrier` keeps that order: a step waits for the piece before it, a piece for the step before it.

Dims: M rows of the product, N its columns, K the dim that is summed over; m: of one piece; n: of one slice.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.gemm.blocked_slices import cut, join
from jaxquard.gemm.line_scatter import LineScatter, Passing
from jaxquard.gemm.product import Product
from jaxquard.gemm.rings import all_gather, ring_size


def left_stationary_pieces(lhs: jax.Array, rhs: jax.Array, product: Product) -> jax.Array:
    """B's next slice and the sums of the slice before travel beside the pieces of a product."""
    layout, slices = product.layout, product.slices or 1
    rhs_dim, out_dim = layout.rhs.index("N"), layout.out.index("N")
    rhs_slices = cut(rhs, dim=rhs_dim, slices=slices, block=product.block)
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
    return join([*done, _scatter(before_Mn, lines[-1])], dim=out_dim, block=product.block)


def _pieces(
    lhs: jax.Array, rhs_Kn: jax.Array, before_Mn: jax.Array | None, line: LineScatter, product: Product
) -> tuple[jax.Array, Passing | None]:
    """The product, and what has arrived of the sums before once it is done."""
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
    """The last slice's sums, which have no product left to run beside."""
    passing = None
    for number in range(1, line.num_steps + 1):
        passing = line.step(partial_Mn, number, passing)
    return line.finish(partial_Mn, passing)
