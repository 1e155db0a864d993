"""The product of a fully connected layer, with gradients that keep the same matrix stationary (MeshSlice, Table 1).

`layer_shardings` gives the shardings that a layer wants of its matrices: placed once, nothing moves before a product.

Nothing is transposed and nothing reshards between layers: x and y have their first dim (the batch) sharded over the
mesh's rows and their last (heads, features) over its columns, unless W is stationary; w is sharded as `w_spec` says but
keeps the shape in which the user wrote it, as does its gradient.

Beside data parallelism the first dim of x and y is sharded over the batch axes, too, and these are major. Each replica
multiplies its own rows; the only transfer over the batch axes is one sum of w's gradient, after its product.

The collectives of the backward products are issued anew, never shared with the forward ones, which would keep gathered
matrices alive in between: `optimization_barrier` sees to that (XLA:CPU drops the barriers and shares them after all).
"""

import functools
import math
from dataclasses import replace
from typing import Literal, Unpack

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.check_product import check_size
from jaxquard.gemm.algorithms.choices import find_count
from jaxquard.gemm.algorithms.multiply import check_matrices, manual_shape
from jaxquard.gemm.algorithms.products.batch_axes import (
    BatchAxes,
    check_array_sharding,
    find_batch_axes,
    free_axes,
    manual_axes,
    read_batch_axes,
    shard_mapped,
)
from jaxquard.gemm.algorithms.products.product import Axes
from jaxquard.gemm.algorithms.products.shardings import AnyMesh, axes_of, find_mesh, num_chips, two_axes
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.layers.resolve_plan import Choices, check_layer, resolve_plan
from jaxquard.gemm.layers.sharded_layer import ShardedLayer
from jaxquard.gemm.layers.varying import sum_over_copies, vary_like
from jaxquard.gemm.problem import GemmPlan, Kernel, LayerPlan, ProductRole, Stationary


def matmul(
    x: Float[Array, "*batch K"],
    w: Float[Array, "K N"],
    *,
    mesh: AnyMesh | None = None,
    plan: GemmPlan | LayerPlan | Tuning | None = None,
    layer: str | None = None,
    axis_names: tuple[str, str] | None = None,
    batch_axes: BatchAxes = None,
    algorithm: str | None = None,
    stationary: Stationary | str | None = None,
    is_transposed: bool | None = None,
    slices: int | tuple[int, int, int] | None = None,
    block: int | None = None,
    split_for_overlap: bool | None = None,
    ring: Literal["rows", "columns"] | None = None,
    bidirectional: bool | None = None,
    num_packets: int | None = None,
    kernel: Kernel | Literal["xla", "pallas"] | None = None,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Float[Array, "*batch N"]:
    """Multiplies `x @ w` on a 2D mesh; works inside and outside `jit`, `checkpoint`, `scan` and `vmap`.

    It has reverse-mode gradients of any order (`grad`, `vjp`). As for every `custom_vjp`, JAX refuses forward mode
    (`jvp`, `linearize`, `jacfwd`, `hessian`).

    Args:
        x: activations. All leading dims together are the rows of the product; the first of them is sharded.
        w: the weight, [K, N], whichever way the plan stores it.
        mesh: by default that of `jax.set_mesh`. Other axes of the mesh stay as they are. On Explicit axes, x and w must
            have the shardings of `layer_shardings`.
        plan: the autotuner's result, for one layer, or for several of which `layer` names one. Without a plan, the
            arguments below choose.
        axis_names: the mesh axes that are its rows and columns; by default the two axes of the mesh.
        batch_axes: the mesh axes besides over which the first dim of x and y is sharded, major to those of the product
            (data parallelism); the gradient of w is summed over them. By default those of x where its sharding is
            known: x is a concrete array, or the axes are Explicit. Under `jit` on Auto axes it is not, and all further
            axes of the mesh that divide the first dim are taken; `batch_axes=()` takes none.
        algorithm: a key of `ALGORITHMS`; by default that of the plan, else "meshslice".
        stationary: "y" (the default), "x" or "w": the matrix that does not move, forward and backward. The largest is
            best.
        is_transposed: swaps the rows and columns of the mesh.
        slices: the number of slices, for all three products or for (forward, backward of x, backward of w).
        block: the number of neighbouring columns or rows that a slice takes at a time; 8 by default.
        split_for_overlap: MeshSlice: each partial product in parts, each tied to one transfer, so that a TPU's compiler
            hides all transfers.
        ring: Wang: the direction of the ring, "rows" or "columns"; by default the one along which more bytes move.
        bidirectional: Wang and the 1D ones: one half of each shard goes round the ring each way.
        num_packets: SUMMA: the number of packets in which a broadcast or reduction streams over its ring; 1 by default.
        kernel: MeshSlice on TPUs: with "pallas", whatever the plan, the one of the three products that is in OS is one
            Pallas kernel, which sends by remote DMA beside the MXU; nobody has run it on a chip yet.
        precision: of the chips' products, forward and backward, as `jax.lax.dot_general` takes it.
        preferred_element_type: the dtype of y and of the sums that travel, forward and backward; by default that of x
            and w. Gradients have the dtypes of x and w; the backward products round the gradient of y to that dtype.
            fp8 matrices need it; their backward products are those of the gradient's dtype.

    Raises:
        GemmError: if sizes, slices, mesh and plan do not fit together; the message says what would fit.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> x, w = jnp.ones((32, 64)), jnp.ones((64, 16))
        >>> y = jq.gemm.matmul(x, w, mesh=mesh, stationary="y", slices=2)
        >>> bool(jnp.all(y == x @ w)), y.sharding.spec == jax.P("rows", "columns")
        (True, True)
    """
    mesh = find_mesh(mesh)
    rows, columns = two_axes(mesh, axis_names)
    sharded = resolve_plan(
        plan,
        rows=rows,
        columns=columns,
        shape=mesh.shape,
        layer=layer,
        algorithm=algorithm,
        stationary=stationary,
        is_transposed=is_transposed,
        slices=slices,
        block=block,
        split_for_overlap=split_for_overlap,
        ring=ring,
        bidirectional=bidirectional,
        num_packets=num_packets,
        kernel=kernel,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    check_matrices(x, w, names=("x", "w"), result_dtype=sharded.result_dtype)
    return multiply_layer(sharded, x, w, mesh=mesh, axes=(*rows, *columns), batch_axes=batch_axes)


def multiply_layer(
    layer: ShardedLayer, x: jax.Array, w: jax.Array, *, mesh: AnyMesh, axes: Axes, batch_axes: BatchAxes
) -> jax.Array:
    """Computes `matmul` by a plan that is resolved, on the axes that are the rows and columns of the mesh.

    Args:
        w: [K, N], or [K, ...] for a y with as many dims of features, of which the first is sharded.
    """
    has_dims = getattr(w, "ndim", 0) > 2
    flat_w = jax.ShapeDtypeStruct((w.shape[0], math.prod(w.shape[1:])), w.dtype) if has_dims else w
    check_matrices(x, flat_w, names=("x", "w"), result_dtype=layer.result_dtype)
    if has_dims:
        chips = math.lcm(*(num_chips(axes_of(spec[1]), mesh.shape) for spec in (layer.w_spec, layer.y_spec(2))))
        check_size("the first dim of features", w.shape[1], chips, why=f"the mesh shards it over {chips}")
    num_shards = layer.first_dim_shards(mesh.shape)
    found = find_batch_axes(batch_axes, x, mesh=mesh, used=axes, num_shards=num_shards)
    layer = replace(layer, batch_axes=found)
    check_layer(layer, x_shape=x.shape, w_shape=flat_w.shape, shape=mesh.shape)
    for name, array, spec in (("x", x, layer.x_spec(x.ndim)), ("w", w, _w_spec(layer, w))):
        check_array_sharding(name, array, spec, mesh=mesh, call=f"gemm.layer_shardings(...)[{name!r}]")
    return _matmul(layer, mesh, manual_axes(mesh, (*axes, *found)), x, w)


def matmul_local(
    x: jax.Array,
    w: jax.Array,
    *,
    axis_names: tuple[str, str],
    plan: GemmPlan | LayerPlan | Tuning | None = None,
    **choices: Unpack[Choices],
) -> jax.Array:
    """Multiplies the shards of one device, for use inside your own `shard_map`: the per-device part of `matmul`.

    The shards are those of `layer_shardings`. Gradients are summed over other mesh axes, along which x or w is
    replicated.

    Args:
        x: the device's shard of x.
        w: the device's shard of w.
        axis_names: the manual axes that are the rows and columns of the mesh.
        plan: as for `matmul`, as are the remaining arguments.

    Returns:
        The device's shard of y.

    Raises:
        GemmError: as `matmul`.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> x, w = jnp.ones((32, 64)), jnp.ones((64, 16))
        >>> shardings = jq.gemm.layer_shardings(mesh=mesh, stationary="y")
        >>> spec = {name: sharding.spec for name, sharding in shardings.items()}
        >>> run = jax.shard_map(
        ...     lambda x, w: jq.gemm.matmul_local(x, w, axis_names=("rows", "columns"), stationary="y"),
        ...     mesh=mesh,
        ...     in_specs=(spec["x"], spec["w"]),
        ...     out_specs=spec["y"],
        ... )
        >>> bool(jnp.all(run(x, w) == x @ w))
        True
    """
    if not isinstance(axis_names, tuple | list) or len(axis_names) != 2:
        raise GemmError(f"axis_names must be two axes of the shard_map, its rows and columns, but are {axis_names!r}.")
    rows, columns = (axis_names[0],), (axis_names[1],)
    shape = manual_shape((*rows, *columns))
    sharded = resolve_plan(plan, rows=rows, columns=columns, shape=shape, **choices)

    def whole(shard: jax.Array, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        if shard.ndim < 2:
            return jax.ShapeDtypeStruct(shard.shape, shard.dtype)
        first, *inner, last = shard.shape
        outer, features = (num_chips(axes_of(entry), shape) for entry in spec)
        return jax.ShapeDtypeStruct((first * outer, *inner, last * features), shard.dtype)

    whole_x, whole_w = whole(x, sharded.x_spec(2)), whole(w, sharded.w_spec)
    check_matrices(whole_x, whole_w, names=("x", "w"), result_dtype=sharded.result_dtype)
    check_layer(sharded, x_shape=whole_x.shape, w_shape=whole_w.shape, shape=shape)
    return _matmul_local(sharded, x, w)


def layer_shardings(
    *,
    mesh: AnyMesh | None = None,
    plan: GemmPlan | LayerPlan | Tuning | None = None,
    axis_names: tuple[str, str] | None = None,
    batch_axes: BatchAxes = None,
    num_x_dims: int = 2,
    **choices: Unpack[Choices],
) -> dict[str, NamedSharding]:
    """Returns the shardings of "x", "w" and "y" in `matmul` with the same arguments.

    Args:
        batch_axes: by default all axes of the mesh besides its rows and columns.
        num_x_dims: the number of dims of x and y, leading dims included.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> shardings = jq.gemm.layer_shardings(mesh=mesh, stationary="y")
        >>> shardings["w"].spec == jax.P("rows", "columns")
        True
    """
    if find_count(num_x_dims, "num_x_dims") < 2:
        raise GemmError(
            f"num_x_dims must be 2 or more: the first and the last dim of x are sharded; but is {num_x_dims}."
        )
    mesh = find_mesh(mesh)
    rows, columns = two_axes(mesh, axis_names)
    used = (*rows, *columns)
    layer = resolve_plan(plan, rows=rows, columns=columns, shape=mesh.shape, **choices)
    given = read_batch_axes(batch_axes, mesh=mesh, used=used)
    layer = replace(layer, batch_axes=free_axes(mesh, used) if given is None else given)
    specs = {"x": layer.x_spec(num_x_dims), "w": layer.w_spec, "y": layer.y_spec(num_x_dims)}
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _matmul(layer: ShardedLayer, mesh: AnyMesh, axes: Axes, x: jax.Array, w: jax.Array) -> jax.Array:
    y = shard_mapped(
        functools.partial(_forward, layer),
        mesh=mesh,
        in_specs=(layer.x_spec(x.ndim), _w_spec(layer, w)),
        out_specs=_y_spec(layer, x, w),
        axes=axes,
    )(x, w)
    return vary_like(y, x, w)


def _matmul_forward(layer: ShardedLayer, mesh: AnyMesh, axes: Axes, x: jax.Array, w: jax.Array):
    return _matmul(layer, mesh, axes, x, w), (x, w)


def _matmul_backward(layer: ShardedLayer, mesh: AnyMesh, axes: Axes, saved: tuple, dy: jax.Array):
    x, w = saved
    x_spec, w_spec = layer.x_spec(x.ndim), _w_spec(layer, w)
    gradients = shard_mapped(
        functools.partial(_backward, layer),
        mesh=mesh,
        in_specs=(x_spec, w_spec, _y_spec(layer, x, w)),
        out_specs=(x_spec, w_spec),
        axes=axes,
    )(x, w, dy)
    dx, dw = vary_like(gradients, x, w, dy)
    return sum_over_copies(dx, x), sum_over_copies(dw, w)


def _w_spec(layer: ShardedLayer, w: jax.Array) -> PartitionSpec:
    return PartitionSpec(*layer.w_spec, *(None,) * (w.ndim - 2))


def _y_spec(layer: ShardedLayer, x: jax.Array, w: jax.Array) -> PartitionSpec:
    return PartitionSpec(*layer.y_spec(x.ndim), *(None,) * (w.ndim - 2))


_matmul.defvjp(_matmul_forward, _matmul_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _matmul_local(layer: ShardedLayer, x: jax.Array, w: jax.Array) -> jax.Array:
    return _forward(layer, x, w)


def _matmul_local_forward(layer: ShardedLayer, x: jax.Array, w: jax.Array):
    return _forward(layer, x, w), (x, w)


def _matmul_local_backward(layer: ShardedLayer, saved: tuple[jax.Array, jax.Array], dy: jax.Array):
    x, w = saved
    dx, dw = _backward(layer, x, w, dy)
    return sum_over_copies(dx, x), sum_over_copies(dw, w)


_matmul_local.defvjp(_matmul_local_forward, _matmul_local_backward)


def _forward(layer: ShardedLayer, x: jax.Array, w: jax.Array) -> jax.Array:
    x_MK, w_KN = x.reshape(-1, x.shape[-1]), w.reshape(w.shape[0], -1)
    y_MN = layer.multiply(ProductRole.FORWARD, x_MK, w_KN)
    inner = w.shape[2:]
    return y_MN.reshape(-1, *x.shape[1:-1], y_MN.shape[-1] // math.prod(inner), *inner)


def _backward(layer: ShardedLayer, x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    # fp8 has no room for gradients that are not scaled.
    dtype = x.dtype if x.dtype.itemsize > 1 else dy.dtype
    x_MK, w_KN = x.reshape(-1, x.shape[-1]).astype(dtype), w.reshape(w.shape[0], -1).astype(dtype)
    dy_MN = dy.reshape(-1, math.prod(dy.shape[x.ndim - 1 :])).astype(dtype)
    dx_MK = layer.multiply(ProductRole.BACKWARD_DATA, *lax.optimization_barrier((dy_MN, w_KN)))
    dw_KN = layer.multiply(ProductRole.BACKWARD_WEIGHT, *lax.optimization_barrier((x_MK, dy_MN)))
    if layer.batch_axes:
        dw_KN = lax.psum(dw_KN, layer.batch_axes)
    return dx_MK.astype(x.dtype).reshape(x.shape), dw_KN.astype(w.dtype).reshape(w.shape)
