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

from jaxquard.errors import GemmError
from jaxquard.gemm.check_product import check_product
from jaxquard.gemm.choices import find_choice
from jaxquard.gemm.problem import Dataflow
from jaxquard.gemm.product import Product
from jaxquard.gemm.registry import find_algorithm
from jaxquard.gemm.shardings import AnyMesh, lhs_spec, num_chips, out_spec, rhs_spec, two_axes
from jaxquard.gemm.sizes import global_sizes

_NAMES = {"M": "M, the rows of lhs,", "K": "K, the dim summed over,", "N": "N, the columns of rhs,"}


def multiply(
    lhs: Float[Array, "M K"],
    rhs: Float[Array, "K N"],
    *,
    mesh: AnyMesh,
    axis_names: tuple[str, str] | None = None,
    algorithm: str = "meshslice",
    dataflow: Dataflow | str = Dataflow.OS,
    is_transposed: bool = False,
    slices: int | None = None,
    block: int = 8,
    is_halved: bool = False,
    ring: Literal["rows", "columns"] | None = None,
    num_packets: int = 1,
) -> Float[Array, "M N"]:
    """`lhs @ rhs` on a 2D mesh.

    The matrices are cut as the dataflow wants (see `product`); under `jit`, whatever is cut otherwise is moved first.

    Args:
        axis_names: the mesh axes that are its rows and columns; left out, those of a mesh with two.
        dataflow: "os", "ls" or "rs": which of C, A and B stays where it is.
        is_transposed: the transposed form: rows and columns of the mesh change their parts.
        slices: MeshSlice: S; Wang, SUMMA and the 1D ones: the iterations. Left out: 1 slice; one iteration a chip.
        block: how many neighbouring columns or rows a slice takes at a time.
        is_halved: MeshSlice: products in parts, each tied to one transfer, so that a TPU's compiler hides them all.
        ring: Wang's ring, along the "rows" or the "columns" of the mesh; left out, where more bytes move.
        num_packets: SUMMA: in how many packets a broadcast or reduction streams over its ring.

    Raises:
        GemmError: if there is no such algorithm or dataflow, or sizes, slices and mesh do not fit.
    """
    chosen = find_algorithm(algorithm)
    rows, columns = two_axes(mesh, axis_names)
    seen_rows, seen_columns = chosen.view(rows, columns)
    product = Product(
        dataflow=find_choice(Dataflow, dataflow, "dataflow"),
        rows=seen_rows,
        columns=seen_columns,
        slices=slices,
        block=block,
        is_halved=is_halved,
        ring=find_ring(ring, rows=rows, columns=columns),
        num_packets=num_packets,
    )
    product = product.transposed() if is_transposed else product
    check_matrices(lhs, rhs)
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
    """One chip's part of a product, for use inside your own `shard_map`: its shards in, its shard of C out.

    `product` says how the shards are cut and lie in memory, and names the mesh axes of the outer `shard_map`.

    Raises:
        GemmError: as `multiply`.
    """
    chosen = find_algorithm(algorithm)
    rows, columns = chosen.view(product.rows, product.columns)
    product = replace(product, rows=rows, columns=columns)
    shape = {axis: lax.axis_size(axis) for axis in (*rows, *columns)}
    check_product(
        chosen,
        product,
        sizes=global_sizes(lhs, rhs, product),
        num_rows=num_chips(rows, shape),
        num_columns=num_chips(columns, shape),
        names=_NAMES,
    )
    return chosen.multiply(lhs, rhs, product)


def find_ring(
    ring: Literal["rows", "columns"] | None, *, rows: tuple[str, ...], columns: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The axes of the ring that a word stands for."""
    rings = {None: None, "rows": rows, "columns": columns}
    if ring not in rings:
        raise GemmError(f"ring must be 'rows', 'columns' or None, but is {ring!r}.")
    return rings[ring]


def check_matrices(lhs: jax.Array, rhs: jax.Array, *, names: tuple[str, str] = ("lhs", "rhs")) -> None:
    """Raises a GemmError unless the matrices can be multiplied: lhs may have more leading dims."""
    left, right = names
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
