"""Refuses a product that the Pallas kernel cannot do, in the user's names, before the kernel is traced."""

import jax

from jaxquard._jax_compat import is_pallas_interpreted, traced_device_kind
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.pallas_kernel.tiles import MemoryTile, memory_tile
from jaxquard.gemm.algorithms.products.product import Axes, Product
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow

_DTYPES = ("bfloat16", "float32")


def check_kernel(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> None:
    """Checks the shards of one chip, inside `shard_map`.

    Raises:
        GemmError: for another dataflow, dtype or platform, for shards that no memory tiles divide, or for mesh axes
            that the compiler partitions.
    """
    if product.dataflow is not Dataflow.OS:
        raise GemmError(
            f"kernel='pallas' multiplies in the dataflow 'os', but this product is in {product.dataflow.value!r}. Use "
            "dataflow='os', or kernel='xla'."
        )
    if options.split_for_overlap:
        raise GemmError(
            "split_for_overlap splits products for XLA, but kernel='pallas' overlaps by itself. Leave one of them out."
        )
    if lhs.dtype.name not in _DTYPES:
        raise GemmError(
            f"kernel='pallas' multiplies {' and '.join(_DTYPES)}, but the matrices are {lhs.dtype}. Convert them, or "
            "use kernel='xla'."
        )
    if product.layout.precision is not None or product.layout.rounded(lhs.dtype).name not in _DTYPES:
        raise GemmError(
            "kernel='pallas' multiplies in the default precision to a result in "
            f"{' or '.join(_DTYPES)}. Leave precision and preferred_element_type out, or use kernel='xla'."
        )
    _check_devices()
    _check_axes((*product.rows, *product.columns))
    if not is_pallas_interpreted():
        _check_chunks(lhs, rhs, product, options)


def _check_devices() -> None:
    kind = traced_device_kind()
    if "TPU" not in kind and not is_pallas_interpreted():
        raise GemmError(
            f"kernel='pallas' is for TPUs, but the devices are {kind!r}. Use kernel='xla'; to try the kernel without a "
            "TPU, run it under jax.experimental.pallas.tpu.force_tpu_interpret_mode()."
        )


def _check_axes(axes: Axes) -> None:
    """Refuses axes of several chips that are not manual: a kernel is not partitioned by the compiler."""
    mesh = jax.sharding.get_abstract_mesh()
    left = [axis for axis in mesh.axis_names if axis not in mesh.manual_axes and mesh.shape[axis] > 1]
    if left:
        raise GemmError(
            f"kernel='pallas' runs where all axes of the mesh are manual, but {', '.join(left)} is left to the "
            f"compiler beside {', '.join(axes)}. Use `multiply_local` inside a `shard_map` over all axes, or "
            "kernel='xla'."
        )


def _check_chunks(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> None:
    """Checks what a chip sends of a slice: DMAs move whole tiles of the memory."""
    layout, tile, slices = product.layout, memory_tile(lhs.dtype), options.slices or 1
    lhs_sizes = dict(zip(layout.lhs, lhs.shape, strict=True))
    rhs_sizes = dict(zip(layout.rhs, rhs.shape, strict=True))
    shapes = {"lhs": (lhs_sizes["M"], lhs_sizes["K"]), "rhs": (rhs_sizes["K"], rhs_sizes["N"])}
    for name, (rows, columns) in shapes.items():
        found = (rows, columns // slices) if name == "lhs" else (rows // slices, columns)
        if any(size % unit for size, unit in zip(found, tile, strict=True)):
            raise GemmError(
                f"kernel='pallas' sends slices in multiples of {tile[0]} rows by {tile[1]} columns of {lhs.dtype}, but "
                f"a chip's slice of {name} is {found[0]} by {found[1]}. {_advise(shapes, tile)}"
            )


def _advise(shapes: dict[str, tuple[int, int]], tile: MemoryTile) -> str:
    """Names the numbers of slices that fit, if there are any."""
    (m, lhs_k), (rhs_k, n) = shapes["lhs"], shapes["rhs"]
    if m % tile[0] == 0 and n % tile[1] == 0:
        most = min(lhs_k // tile[1], rhs_k // tile[0])
        fitting = [s for s in range(1, most + 1) if lhs_k % (s * tile[1]) == 0 and rhs_k % (s * tile[0]) == 0]
        if fitting:
            return f"Use a number of slices that fits ({', '.join(map(str, fitting))}), or kernel='xla'."
    return "Pad the matrices, or use kernel='xla'."
