"""MeshSlice: S partial collectives in both directions beside S partial products (section 3.1, Figure 5).

The slices are double-buffered in every dataflow: the gathers of slice s + 1 are issued before the product of slice s,
and in LS and RS the reduce-scatter of slice s - 1 after it. Up to 8 slices are unrolled, more run in a loop
(`slice_loop`). With one slice this is `collective`. With `split_for_overlap` the product of each slice is split for a
TPU's compiler (`split`; design decision 10). With `Kernel.PALLAS` an OS product is a kernel of our own
(`pallas_kernel`).
"""

import jax

from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.slicing.plain import left_stationary, output_stationary
from jaxquard.gemm.algorithms.slicing.split import left_stationary_streams, output_stationary_halves
from jaxquard.gemm.algorithms.transfers.rings import axes_size
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow, Kernel


def meshslice(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`."""
    if options.kernel is Kernel.PALLAS:
        # Here, because Pallas takes long to import.
        from jaxquard.gemm.algorithms.pallas_kernel.output_stationary import output_stationary_kernel

        return output_stationary_kernel(lhs, rhs, product, options)
    is_split = options.split_for_overlap and (options.slices or 1) > 1  # one slice has nothing to hide beside
    match product.dataflow:
        case Dataflow.OS:
            return (output_stationary_halves if is_split else output_stationary)(lhs, rhs, product, options)
        case Dataflow.LS:
            has_sums = axes_size(product.columns) > 1
            return (left_stationary_streams if is_split and has_sums else left_stationary)(lhs, rhs, product, options)
        case Dataflow.RS:
            return meshslice(rhs, lhs, product.mirrored(), options)
