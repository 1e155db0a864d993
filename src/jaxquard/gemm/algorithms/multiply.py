"""One product on a mesh, by any algorithm: of whole arrays, or of the shards of a chip.

For a layer that is trained, use `matmul`, which has the gradients of Table 1. Results have the dtype of the matrices;
a chip adds in float32, and what travels has the dtype of the matrices (see `rings`).
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxquard.cluster import Axis
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.check_product import check_option, check_product
from jaxquard.gemm.algorithms.choices import find_choice, find_flag
from jaxquard.gemm.algorithms.product import Axes, Product
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.algorithms.shardings import AnyMesh, find_mesh, lhs_spec, num_chips, out_spec, rhs_spec, two_axes
from jaxquard.gemm.algorithms.sizes import global_sizes
from jaxquard.gemm.problem import Dataflow

Matrix = jax.Array | jax.ShapeDtypeStruct

_NAMES = {"M": "M, the rows of lhs,", "K": "K, the dim summed over,", "N": "N, the columns of rhs,"}


def multiply(
    lhs: Float[Array, "M K"],
    rhs: Float[Array, "K N"],
    *,
    mesh: AnyMesh | None = None,
    axis_names: tuple[str, str] | None = None,
    algorithm: str = "meshslice",
    dataflow: Dataflow | str = Dataflow.OS,
    is_transposed: bool = False,
    slices: int | None = None,
    block: int | None = None,
    in_parts: bool = False,
    ring: Literal["rows", "columns"] | None = None,
    both_ways: bool = False,
    num_packets: int = 1,
) -> Float[Array, "M N"]:
    """Multiplies `lhs @ rhs` on a 2D mesh, by one algorithm in one dataflow.

    Both matrices are sharded as the dataflow needs them (see `Product`); under `jit`, others are resharded first.

    Args:
        mesh: by default that of `jax.set_mesh`.
        axis_names: the mesh axes that are its rows and columns; by default the two axes of the mesh.
        algorithm: a key of `ALGORITHMS`.
        dataflow: "os", "ls" or "rs": output, left or right stationary; the matrix that does not move.
        is_transposed: the transposed form, which swaps the rows and columns of the mesh.
        slices: MeshSlice: S, 1 by default. Wang, SUMMA and the 1D ones: the number of iterations, by default one a
            chip.
        block: MeshSlice: the number of neighbouring columns or rows that a slice takes at a time; 8 by default.
        in_parts: MeshSlice: products in parts, each tied to one transfer, so that a TPU's compiler hides them all.
        ring: Wang: the direction of the ring, "rows" or "columns"; by default the one along which more bytes move.
        both_ways: Wang and the 1D ones: one half of each shard goes round the ring each way.
        num_packets: SUMMA: the number of packets in which a broadcast or reduction streams over its ring.

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
    product = Product(
        dataflow=find_choice(Dataflow, dataflow, "dataflow"),
        rows=seen_rows,
        columns=seen_columns,
        slices=slices,
        block=8 if block is None else block,
        in_parts=find_flag(in_parts, "in_parts"),
        ring=find_ring(ring, rows=rows, columns=columns),
        both_ways=find_flag(both_ways, "both_ways"),
        num_packets=num_packets,
    )
    product = product.transposed() if find_flag(is_transposed, "is_transposed") else product
    check_matrices(lhs, rhs)
    if lhs.ndim != 2:
        raise GemmError(f"lhs must have 2 dims, but its shape is {lhs.shape}. For leading dims, use `matmul`.")
    check_product(
        chosen,
        product,
        sizes={"M": lhs.shape[0], "K": lhs.shape[1], "N": rhs.shape[1]},
        num_rows=num_chips(product.rows, mesh.shape),
        num_columns=num_chips(product.columns, mesh.shape),
        names=_NAMES,
    )
    return jax.shard_map(
        lambda lhs, rhs: chosen.multiply(lhs, rhs, product),
        mesh=mesh,
        in_specs=(lhs_spec(product), rhs_spec(product)),
        out_specs=out_spec(product),
        axis_names={*rows, *columns},
        check_vma=False,
    )(lhs, rhs)


def multiply_local(lhs: jax.Array, rhs: jax.Array, *, algorithm: str, product: Product) -> jax.Array:
    """Multiplies the shards of one device, for use inside your own `shard_map`: the per-device part of `multiply`.

    `product` gives the sharding and the layout of the shards, and names the mesh axes of the enclosing `shard_map`.

    Returns:
        The device's shard of the result.

    Raises:
        GemmError: as `multiply`.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> x, w = jnp.ones((32, 64)), jnp.ones((64, 16))
        >>> product = jq.gemm.Product(dataflow=jq.gemm.Dataflow("os"), rows=("rows",), columns=("columns",), slices=2)
        >>> both = jax.P("rows", "columns")
        >>> run = jax.shard_map(
        ...     lambda lhs, rhs: jq.gemm.multiply_local(lhs, rhs, algorithm="meshslice", product=product),
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
    rows, columns = chosen.view(product.rows, product.columns)
    product = replace(product, rows=rows, columns=columns)
    shape = manual_shape((*rows, *columns))
    for name, shard in (("lhs", lhs), ("rhs", rhs)):
        if shard.ndim != 2:
            raise GemmError(f"{name} must be the shard of a matrix, with 2 dims, but has the shape {shard.shape}.")
    sizes = global_sizes(lhs, rhs, product)
    over = num_chips(columns if product.dataflow is Dataflow.LS else rows, shape)
    summed = rhs.shape[product.layout.rhs.index("K")] * over
    check_matrices(
        jax.ShapeDtypeStruct((sizes["M"], sizes["K"]), lhs.dtype),
        jax.ShapeDtypeStruct((summed, sizes["N"]), rhs.dtype),
    )
    check_product(
        chosen,
        product,
        sizes=sizes,
        num_rows=num_chips(rows, shape),
        num_columns=num_chips(columns, shape),
        names=_NAMES,
    )
    return chosen.multiply(lhs, rhs, product)


def manual_shape(axes: Axes) -> dict[str, int]:
    """How many chips lie along each of these axes of the `shard_map` around us.

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


def find_ring(
    ring: Axis | Literal["rows", "columns"] | None, *, rows: tuple[str, ...], columns: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The axes of the ring that a direction of the mesh stands for."""
    word = ring.value if isinstance(ring, Axis) else ring
    rings = {None: None, "rows": rows, "columns": columns}
    if not isinstance(word, str | None) or word not in rings:
        raise GemmError(f"ring must be 'rows', 'columns' or None, but is {ring!r}.")
    return rings[word]


def check_matrices(lhs: Matrix, rhs: Matrix, *, names: tuple[str, str] = ("lhs", "rhs")) -> None:
    """Raises a GemmError unless the matrices can be multiplied: lhs may have more leading dims."""
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
