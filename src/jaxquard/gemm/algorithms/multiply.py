"""Multiplies on a mesh by any algorithm: whole arrays, or the shards of a chip.

For a layer that is trained, use `matmul`, which has the gradients of Table 1. Results have the dtype of the matrices
unless another is preferred; a chip adds in float32, and transfers have the dtype of the matrices (see `rings`), sums
that of the result.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxquard._jax_compat import varying_axes
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.check_product import MATRIX_NAMES, check_option, check_product, check_size
from jaxquard.gemm.algorithms.choices import find_choice, find_flag, find_precision, find_result_dtype, find_ring
from jaxquard.gemm.algorithms.products.batch_axes import (
    BatchAxes,
    check_array_sharding,
    find_batch_axes,
    manual_axes,
    shard_mapped,
    with_batch,
)
from jaxquard.gemm.algorithms.products.product import Axes, Layout, Product
from jaxquard.gemm.algorithms.products.shardings import (
    AnyMesh,
    axes_of,
    find_mesh,
    lhs_spec,
    mesh_shape_of,
    num_chips,
    out_spec,
    rhs_spec,
    two_axes,
)
from jaxquard.gemm.algorithms.products.sized_product import SizedProduct, size_shards
from jaxquard.gemm.algorithms.registry import Algorithm, find_algorithm
from jaxquard.gemm.problem import DEFAULT_OPTIONS, AlgorithmOptions, Dataflow, Kernel

Matrix = jax.Array | jax.ShapeDtypeStruct


def multiply(
    lhs: Float[Array, "M K"],
    rhs: Float[Array, "K N"],
    *,
    mesh: AnyMesh | None = None,
    axis_names: tuple[str, str] | None = None,
    batch_axes: BatchAxes = None,
    algorithm: str = "meshslice",
    dataflow: Dataflow | str = Dataflow.OS,
    is_transposed: bool = False,
    slices: int | None = None,
    block: int | None = None,
    split_for_overlap: bool = False,
    ring: Literal["rows", "columns"] | None = None,
    bidirectional: bool = False,
    num_packets: int = 1,
    kernel: Kernel | Literal["xla", "pallas"] = Kernel.XLA,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Float[Array, "M N"]:
    """Multiplies `lhs @ rhs` on a 2D mesh, by one algorithm in one dataflow.

    Both matrices are sharded as the dataflow needs them (see `Product`); under `jit`, others are resharded first.

    Args:
        mesh: by default that of `jax.set_mesh`.
        axis_names: the mesh axes that are its rows and columns; by default the two axes of the mesh.
        batch_axes: the mesh axes besides over which the rows of lhs and of the product are sharded; as for `matmul`.
        algorithm: a key of `ALGORITHMS`.
        dataflow: "os", "ls" or "rs": output, left or right stationary; the matrix that does not move.
        is_transposed: the transposed form, which swaps the rows and columns of the mesh.
        slices: MeshSlice: S, 1 by default. Wang, SUMMA and the 1D ones: the number of iterations, by default one a
            chip.
        block: MeshSlice: the number of neighbouring columns or rows that a slice takes at a time; 8 by default. In LS
            and RS, slices take as many as fit: it changes no number.
        split_for_overlap: MeshSlice: each partial product in parts, each tied to one transfer, so that a TPU's compiler
            hides all transfers.
        ring: Wang: the direction of the ring, "rows" or "columns"; by default the one along which more bytes move.
        bidirectional: Wang and the 1D ones: one half of each shard goes round the ring each way.
        num_packets: SUMMA: the number of packets in which a broadcast or reduction streams over its ring.
        kernel: MeshSlice in OS on TPUs: "pallas" is one Pallas kernel, which sends by remote DMA beside the MXU; nobody
            has run it on a chip yet.
        precision: of the chips' products, as `jax.lax.dot_general` takes it.
        preferred_element_type: the dtype of the result and of the sums that travel; by default that of the matrices.
            fp8 matrices need it.

    Raises:
        GemmError: if there is no such algorithm or dataflow, or sizes, slices and mesh do not fit together.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> x, w = jnp.ones((32, 64)), jnp.ones((64, 16))
        >>> product = jq.gemm.multiply(x, w, mesh=mesh, algorithm="collective", dataflow="os")
        >>> bool(jnp.all(product == x @ w))
        True
    """
    chosen = find_algorithm(algorithm)
    mesh = find_mesh(mesh)
    rows, columns = two_axes(mesh, axis_names)
    seen_rows, seen_columns = chosen.view(rows, columns)
    if block is not None:
        check_option(chosen, "block")
    result_dtype = find_result_dtype(preferred_element_type)
    product = Product(
        dataflow=find_choice(Dataflow, dataflow, "dataflow"),
        rows=seen_rows,
        columns=seen_columns,
        layout=Layout(precision=find_precision(precision), result_dtype=result_dtype),
    )
    options = AlgorithmOptions(
        slices=slices,
        block=8 if block is None else block,
        split_for_overlap=find_flag(split_for_overlap, "split_for_overlap"),
        ring=find_ring(ring),
        bidirectional=find_flag(bidirectional, "bidirectional"),
        num_packets=num_packets,
        kernel=find_choice(Kernel, kernel, "kernel"),
    )
    if find_flag(is_transposed, "is_transposed"):
        product, options = product.transposed(), options.exchanged()
    check_matrices(lhs, rhs, result_dtype=result_dtype)
    if lhs.ndim != 2:
        raise GemmError(f"lhs must have 2 dims, but its shape is {lhs.shape}. For leading dims, use `matmul`.")
    _check_unchecked(lhs, rhs)
    axes = (*rows, *columns)
    num_shards = math.lcm(*(num_chips(axes_of(spec(product)[0]), mesh.shape) for spec in (lhs_spec, out_spec)))
    found = find_batch_axes(batch_axes, lhs, mesh=mesh, used=axes, num_shards=num_shards)
    _check_sizes(chosen, product, options, lhs.shape, rhs.shape, shape=mesh.shape, batch_axes=found)
    in_specs = with_batch(lhs_spec(product), found), rhs_spec(product)
    for name, matrix, spec in zip(("lhs", "rhs"), (lhs, rhs), in_specs, strict=True):
        check_array_sharding(name, matrix, spec, mesh=mesh, call=f"NamedSharding(mesh, {spec})")
    return shard_mapped(
        lambda lhs, rhs: chosen.multiply(lhs, rhs, product, options),
        mesh=mesh,
        axes=manual_axes(mesh, (*axes, *found)),
        in_specs=in_specs,
        out_specs=with_batch(out_spec(product), found),
    )(lhs, rhs)


def _check_unchecked(lhs: jax.Array, rhs: jax.Array) -> None:
    """Raises a GemmError inside of a `shard_map` that checks varying axes, where gradients would lack their sums."""
    varying = sorted(varying_axes(lhs) | varying_axes(rhs))
    if varying:
        raise GemmError(
            f"inside of a `shard_map` over {', '.join(varying)} that checks varying axes, `multiply` has no gradients. "
            "Use `matmul`, or check_vma=False."
        )


def _check_sizes(
    algorithm: Algorithm,
    product: Product,
    options: AlgorithmOptions,
    lhs_shape: tuple[int, ...],
    rhs_shape: tuple[int, ...],
    *,
    shape: Mapping[str, int],
    batch_axes: Axes,
) -> None:
    """Raises a GemmError unless the sizes of one batch shard fit the product on a mesh of this shape."""
    names, num_batches = MATRIX_NAMES, num_chips(batch_axes, shape)
    if batch_axes:
        over = f"{num_batches} shards over {' and '.join(batch_axes)}"
        check_size("M, the rows of lhs,", lhs_shape[0], num_batches, why=f"batch_axes makes {over}")
        names = {**names, "M": f"M, the rows of lhs in each of {over} (see `batch_axes`),"}
    sized = SizedProduct(product=product, m=lhs_shape[0] // num_batches, k=lhs_shape[1], n=rhs_shape[1])
    check_product(algorithm, sized, options, mesh_shape=mesh_shape_of(product, shape), names=names)


def multiply_local(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    algorithm: str,
    product: Product,
    options: AlgorithmOptions = DEFAULT_OPTIONS,
) -> jax.Array:
    """Multiplies the shards of one device, for use inside your own `shard_map`: the per-device part of `multiply`.

    Args:
        product: the dataflow and the layout of the shards, and the mesh axes of the enclosing `shard_map`.
        options: those of the algorithm; a ring runs along the rows or columns of the product.

    Returns:
        The device's shard of the result.

    Raises:
        GemmError: as `multiply`.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> x, w = jnp.ones((32, 64)), jnp.ones((64, 16))
        >>> product = jq.gemm.Product(dataflow=jq.gemm.Dataflow("os"), rows=("rows",), columns=("columns",))
        >>> options = jq.gemm.AlgorithmOptions(slices=2)
        >>> both = jax.P("rows", "columns")
        >>> run = jax.shard_map(
        ...     lambda lhs, rhs: jq.gemm.multiply_local(
        ...         lhs, rhs, algorithm="meshslice", product=product, options=options
        ...     ),
        ...     mesh=mesh,
        ...     in_specs=(both, both),
        ...     out_specs=both,
        ... )
        >>> bool(jnp.all(run(x, w) == x @ w))
        True
    """
    chosen = find_algorithm(algorithm)
    if not isinstance(product, Product):
        raise GemmError(f"product must be a gemm.Product, but is {product!r}.")
    if not isinstance(options, AlgorithmOptions):
        raise GemmError(f"options must be gemm.AlgorithmOptions, but are {options!r}.")
    rows, columns = chosen.view(product.rows, product.columns)
    product = replace(product, rows=rows, columns=columns)
    shape = manual_shape((*rows, *columns))
    for name, shard in (("lhs", lhs), ("rhs", rhs)):
        if shard.ndim != 2:
            raise GemmError(f"{name} must be the shard of a matrix, with 2 dims, but has the shape {shard.shape}.")
    mesh_shape = mesh_shape_of(product, shape)
    sized = size_shards(lhs, rhs, product, mesh_shape=mesh_shape)
    over = num_chips(product.axes(product.direction("K", "KN")), shape)
    summed = rhs.shape[product.layout.rhs.index("K")] * over
    check_matrices(
        jax.ShapeDtypeStruct((sized.m, sized.k), lhs.dtype),
        jax.ShapeDtypeStruct((summed, sized.n), rhs.dtype),
        result_dtype=product.layout.result_dtype,
    )
    check_product(chosen, sized, options, mesh_shape=mesh_shape)
    return chosen.multiply(lhs, rhs, product, options)


def manual_shape(axes: Axes) -> dict[str, int]:
    """Returns the number of chips along each of these axes of the `shard_map` around us.

    Raises:
        GemmError: if there is none over them.
    """
    try:
        return {axis: lax.axis_size(axis) for axis in axes}
    except NameError:
        manual = ", ".join(jax.sharding.get_abstract_mesh().manual_axes) or "none"
        raise GemmError(
            f"shards are multiplied inside of a `shard_map` over {' and '.join(axes)}, but the manual axes here are: "
            f"{manual}. Name those of your shard_map, or use `matmul` or `multiply` outside of one."
        ) from None


def check_matrices(
    lhs: Matrix, rhs: Matrix, *, names: tuple[str, str] = ("lhs", "rhs"), result_dtype: np.dtype | None = None
) -> None:
    """Raises a GemmError unless the matrices can be multiplied: lhs may have more leading dims.

    Args:
        names: the user's names of them.
        result_dtype: of the product; None for that of the matrices.
    """
    left, right = names
    for name, matrix in ((left, lhs), (right, rhs)):
        if not (hasattr(matrix, "ndim") and hasattr(matrix, "dtype")):
            raise GemmError(
                f"{name} must be an array, but is {type(matrix).__name__}. Convert it: jnp.asarray({name})."
            )
    if lhs.ndim < 2 or rhs.ndim != 2:
        raise GemmError(
            f"expected {left} with 2 dims or more and {right} with 2, but found shapes {lhs.shape} and {rhs.shape}."
        )
    if lhs.shape[-1] != rhs.shape[0]:
        raise GemmError(
            f"the last dim of {left} and the first of {right} are summed over and must be equal, but the shapes are "
            f"{lhs.shape} and {rhs.shape}."
        )
    if lhs.dtype != rhs.dtype or not jnp.issubdtype(lhs.dtype, jnp.floating):
        raise GemmError(
            f"{left} and {right} must have one floating dtype, but have {lhs.dtype} and {rhs.dtype}. Convert one: "
            f"{right}.astype({left}.dtype)."
        )
    if result_dtype is None and lhs.dtype.itemsize < 2:
        raise GemmError(
            f"products of {lhs.dtype} are summed and sent in a wider dtype, but none is named. Name it: "
            "preferred_element_type=jnp.bfloat16, or jnp.float32."
        )
