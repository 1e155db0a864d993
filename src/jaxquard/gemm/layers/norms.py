"""Norms over features that are sharded over a mesh: their own small sums, and nothing else.

A norm stands before a layer and is sharded as the layer's x: rows over the batch axes and one direction of the mesh,
features over the other. So a mean over features is a sum over chips. Forward, one all-reduce sums two numbers a row
(the sum and the sum of squares; RMS: the latter alone); backward, another sums two numbers a row, and one over the
chips that share the features sums the gradients of scale and bias. Written with `jnp.mean`, the compiler makes a sum of
each mean.

The variance is the mean of squares minus the square of the mean, in float32, as Flax computes it (`use_fast_variance`).

Dims: M rows, K features; m, k: of one chip.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.check_product import check_size
from jaxquard.gemm.algorithms.products.batch_axes import (
    BatchAxes,
    check_array_sharding,
    find_batch_axes,
    manual_axes,
    shard_mapped,
)
from jaxquard.gemm.algorithms.products.product import Axes
from jaxquard.gemm.algorithms.products.shardings import AnyMesh, axes_of, find_mesh, num_chips, two_axes
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.layers.resolve_plan import Choices, resolve_plan
from jaxquard.gemm.layers.varying import sum_over_copies, vary_like
from jaxquard.gemm.problem import GemmPlan, LayerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norm:
    """A norm on a mesh; hashable, for use as a static argument.

    Attributes:
        manual: the axes over which its `shard_map` is manual.
        rows: those over which the first dim of x is sharded.
        columns: those over which features are.
        num_features: of the whole x.
        is_centered: a layer norm, which subtracts the mean.
    """

    mesh: AnyMesh
    manual: Axes
    rows: Axes
    columns: Axes
    num_features: int
    is_centered: bool
    epsilon: float

    def x_spec(self, x: jax.Array) -> PartitionSpec:
        return PartitionSpec(self.rows or None, *(None,) * (x.ndim - 2), self.columns or None)

    def row_spec(self, x: jax.Array) -> PartitionSpec:
        return PartitionSpec(self.rows or None, *(None,) * (x.ndim - 1))

    @property
    def scale_spec(self) -> PartitionSpec:
        return PartitionSpec(self.columns or None)


def layer_norm(
    x: Float[Array, "*batch K"],
    scale: Float[Array, " K"],
    bias: Float[Array, " K"] | None = None,
    *,
    mesh: AnyMesh | None = None,
    plan: GemmPlan | LayerPlan | Tuning | None = None,
    axis_names: tuple[str, str] | None = None,
    batch_axes: BatchAxes = None,
    epsilon: float = 1e-5,
    **choices: Unpack[Choices],
) -> Float[Array, "*batch K"]:
    """Normalizes x to mean 0 and variance 1 along its last dim, then scales it, on a 2D mesh.

    It computes in float32 and returns the dtype of x. x is sharded as that of the layer after it, for which plan and
    choices stand, and stays so.

    Args:
        scale: sharded as the last dim of x, as is `bias`.
        mesh: as for `matmul`, as are the remaining arguments.

    Raises:
        GemmError: as `matmul`; or if scale or bias has another number of features.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> x = jax.random.normal(jax.random.key(0), (32, 64))
        >>> y = jq.gemm.layer_norm(x, jnp.ones(64), mesh=mesh)
        >>> bool(jnp.allclose(jnp.std(y, axis=-1), 1, atol=1e-3))
        True
    """
    norm = _resolve(x, mesh, plan, axis_names, batch_axes, choices, is_centered=True, epsilon=epsilon)
    _check_vectors(norm, x, {"scale": scale} | ({} if bias is None else {"bias": bias}))
    return _normalize(norm, x, scale, bias)


def rms_norm(
    x: Float[Array, "*batch K"],
    scale: Float[Array, " K"],
    *,
    mesh: AnyMesh | None = None,
    plan: GemmPlan | LayerPlan | Tuning | None = None,
    axis_names: tuple[str, str] | None = None,
    batch_axes: BatchAxes = None,
    epsilon: float = 1e-5,
    **choices: Unpack[Choices],
) -> Float[Array, "*batch K"]:
    """Normalizes x to a mean square of 1 along its last dim, then scales it, on a 2D mesh; else as `layer_norm`.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> y = jq.gemm.rms_norm(3 * jnp.ones((32, 64)), jnp.ones(64), mesh=mesh)
        >>> bool(jnp.allclose(y, 1))
        True
    """
    norm = _resolve(x, mesh, plan, axis_names, batch_axes, choices, is_centered=False, epsilon=epsilon)
    _check_vectors(norm, x, {"scale": scale})
    return _normalize(norm, x, scale, None)


def _resolve(
    x: jax.Array,
    mesh: AnyMesh | None,
    plan: GemmPlan | LayerPlan | Tuning | None,
    axis_names: tuple[str, str] | None,
    batch_axes: BatchAxes,
    choices: Choices,
    *,
    is_centered: bool,
    epsilon: float,
) -> _Norm:
    """Returns the norm before a layer."""
    if not hasattr(x, "ndim") or x.ndim < 2 or not jnp.issubdtype(x.dtype, jnp.floating):
        found = f"{x.dtype}{list(x.shape)}" if hasattr(x, "ndim") else type(x).__name__
        raise GemmError(f"x must be a floating array of 2 dims or more, but is {found}.")
    mesh = find_mesh(mesh)
    rows, columns = two_axes(mesh, axis_names)
    used = (*rows, *columns)
    layer = resolve_plan(plan, rows=rows, columns=columns, shape=mesh.shape, **choices)
    num_shards = num_chips(axes_of(layer.x_spec(2)[0]), mesh.shape)
    batch = find_batch_axes(batch_axes, x, mesh=mesh, used=used, num_shards=num_shards)
    x_spec = replace(layer, batch_axes=batch).x_spec(x.ndim)
    for name, dim in (("first", 0), ("last", -1)):
        chips = num_chips(axes_of(x_spec[dim]), mesh.shape)
        check_size(f"the {name} dim of x", x.shape[dim], chips, why=f"the mesh shards it over {chips}")
    check_array_sharding("x", x, x_spec, mesh=mesh, call="gemm.layer_shardings(...)['x']")
    return _Norm(
        mesh=mesh,
        manual=manual_axes(mesh, (*used, *batch)),
        rows=axes_of(x_spec[0]),
        columns=axes_of(x_spec[-1]),
        num_features=x.shape[-1],
        is_centered=is_centered,
        epsilon=float(epsilon),
    )


def _check_vectors(norm: _Norm, x: jax.Array, vectors: dict[str, jax.Array]) -> None:
    for name, vector in vectors.items():
        if getattr(vector, "shape", None) != (x.shape[-1],):
            found = getattr(vector, "shape", type(vector).__name__)
            raise GemmError(f"{name} must have one number for each of the {x.shape[-1]} features of x, but is {found}.")
        call = f"NamedSharding(mesh, {norm.scale_spec})"
        check_array_sharding(name, vector, norm.scale_spec, mesh=norm.mesh, call=call)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalize(norm: _Norm, x: jax.Array, scale: jax.Array, bias: jax.Array | None) -> jax.Array:
    return _run_forward(norm, x, scale, bias)[0]


def _normalize_forward(norm: _Norm, x: jax.Array, scale: jax.Array, bias: jax.Array | None):
    y, mean, inverse = _run_forward(norm, x, scale, bias)
    return y, (x, scale, bias, mean, inverse)


def _normalize_backward(norm: _Norm, saved: tuple, dy: jax.Array):
    x, scale, bias, mean, inverse = saved
    rows, vector = norm.row_spec(x), norm.scale_spec
    dx, *gradients = shard_mapped(
        functools.partial(_backward, norm, bias is not None),
        mesh=norm.mesh,
        axes=norm.manual,
        in_specs=(norm.x_spec(x), vector, rows, rows, norm.x_spec(x)),
        out_specs=(norm.x_spec(x), vector) if bias is None else (norm.x_spec(x), vector, vector),
    )(x, scale, mean, inverse, dy)
    dx, *gradients = vary_like((dx, *gradients), x, scale, dy)
    dscale, *dbias = (
        sum_over_copies(gradient, vector).astype(vector.dtype)
        for gradient, vector in zip(gradients, (scale, bias), strict=False)
        if vector is not None
    )
    return sum_over_copies(dx, x), dscale, dbias[0] if dbias else None


_normalize.defvjp(_normalize_forward, _normalize_backward)


def _run_forward(norm: _Norm, x: jax.Array, scale: jax.Array, bias: jax.Array | None) -> Any:
    vectors = (scale,) if bias is None else (scale, bias)
    results = shard_mapped(
        functools.partial(_forward, norm),
        mesh=norm.mesh,
        axes=norm.manual,
        in_specs=(norm.x_spec(x), *(norm.scale_spec,) * len(vectors)),
        out_specs=(norm.x_spec(x), norm.row_spec(x), norm.row_spec(x)),
    )(x, *vectors)
    return vary_like(results, x, *vectors)


def _forward(norm: _Norm, x_mk: jax.Array, scale_k: jax.Array, bias_k: jax.Array | None = None):
    """Returns a chip's part of the result, and the mean and the inverse deviation of its rows."""
    wide_mk = x_mk.astype(jnp.float32)
    sums = [jnp.sum(wide_mk * wide_mk, axis=-1, keepdims=True)]
    if norm.is_centered:
        sums.append(jnp.sum(wide_mk, axis=-1, keepdims=True))
    square, *means = _mean_over_features(norm, sums)
    mean = means[0] if means else jnp.zeros_like(square)
    inverse = lax.rsqrt(jnp.maximum(square - mean * mean, 0) + norm.epsilon)
    y_mk = (wide_mk - mean) * inverse * scale_k.astype(jnp.float32)
    if bias_k is not None:
        y_mk = y_mk + bias_k.astype(jnp.float32)
    return y_mk.astype(x_mk.dtype), mean, inverse


def _backward(
    norm: _Norm,
    has_bias: bool,
    x_mk: jax.Array,
    scale_k: jax.Array,
    mean: jax.Array,
    inverse: jax.Array,
    dy_mk: jax.Array,
) -> tuple[jax.Array, ...]:
    """Returns a chip's part of the gradients of x, of scale and, if there is one, of bias."""
    normed_mk = (x_mk.astype(jnp.float32) - mean) * inverse
    wide_mk = dy_mk.astype(jnp.float32)
    scaled_mk = wide_mk * scale_k.astype(jnp.float32)
    sums = [jnp.sum(scaled_mk * normed_mk, axis=-1, keepdims=True)]
    if norm.is_centered:
        sums.append(jnp.sum(scaled_mk, axis=-1, keepdims=True))
    along, *means = _mean_over_features(norm, sums)
    dx_mk = inverse * (scaled_mk - normed_mk * along - (means[0] if means else 0))
    leading = tuple(range(x_mk.ndim - 1))
    gradients = [jnp.sum(wide_mk * normed_mk, axis=leading)] + [jnp.sum(wide_mk, axis=leading)] * has_bias
    joined_k = jnp.stack(gradients)
    if num_chips(norm.rows, norm.mesh.shape) > 1:
        joined_k = lax.psum(joined_k, norm.rows)
    return dx_mk.astype(x_mk.dtype), *joined_k


def _mean_over_features(norm: _Norm, sums: list[jax.Array]) -> list[jax.Array]:
    """Returns means over all chips that share the features, of one all-reduce."""
    joined = jnp.concatenate(sums, axis=-1)
    if num_chips(norm.columns, norm.mesh.shape) > 1:
        joined = lax.psum(joined, norm.columns)
    return jnp.split(joined / norm.num_features, len(sums), axis=-1)
