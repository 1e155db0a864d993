"""Collective 2D GeMM: whole all-gathers and reduce-scatters around one product (MeshSlice, section 2.3.4, Figure 2b).

OS  gather A along columns, B along rows, multiply
LS  gather B along rows, multiply, reduce-scatter C along columns
RS  gather A along columns, multiply, reduce-scatter C along rows
"""

import jax

from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.transfers.rings import all_gather, reduce_scatter
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow


def collective(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`; there are no options."""
    layout = product.layout
    match product.dataflow:
        case Dataflow.OS:
            lhs_MK = all_gather(lhs, product.columns, dim=layout.lhs.index("K"))
            rhs_KN = all_gather(rhs, product.rows, dim=layout.rhs.index("K"))
            return layout.dot(lhs_MK, rhs_KN, is_rounded=True)
        case Dataflow.LS:
            rhs_KN = all_gather(rhs, product.rows, dim=layout.rhs.index("N"))
            partial_MN = layout.dot(lhs, rhs_KN, is_rounded=True)
            return reduce_scatter(
                partial_MN, product.columns, dim=layout.out.index("N"), dtype=layout.rounded(lhs.dtype)
            )
        case Dataflow.RS:
            return collective(rhs, lhs, product.mirrored(), options)
