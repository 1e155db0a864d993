"""A fully connected layer for plain JAX: two functions, `init` and `apply`, over parameters as the user sees them.

Whatever the plan does with W, `params["w"]` is [in_features, features], so that checkpoints, optimizers and other
meshes see it as written.

Features may have several dims, as in Flax's `DenseGeneral`: with (heads, 3, head_dim) a chip has whole heads, each with
its query, key and value, so that splitting these moves nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Key

from jaxquard._jax_compat import ambient_mesh
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.check_product import check_size
from jaxquard.gemm.algorithms.choices import find_count, find_flag
from jaxquard.gemm.algorithms.products.batch_axes import BatchAxes, check_array_sharding, read_batch_axes
from jaxquard.gemm.algorithms.products.product import Axes
from jaxquard.gemm.algorithms.products.shardings import AnyMesh, axes_of, find_mesh, num_chips, two_axes
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.layers.matmul import multiply_layer
from jaxquard.gemm.layers.resolve_plan import Choices, resolve_plan
from jaxquard.gemm.layers.sharded_layer import ShardedLayer
from jaxquard.gemm.problem import GemmPlan, LayerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A fully connected layer, made by `dense`: `params = layer.init(key, in_features)`, `y = layer.apply(params, x)`.

    Attributes:
        features: the number of output features, or several dims of them, of which the first is sharded.
        mesh: None for that of `jax.set_mesh` at each use.
        dtype: of the product and of the bias added to it; None for that of x and w.
        choices: the arguments of `matmul` that were given besides the plan, by name.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> x, w = jnp.ones((32, 64)), jnp.ones((64, 16))
        >>> layer = jq.gemm.dense(16, mesh=mesh)
        >>> params = layer.init(jax.random.key(0), in_features=64)
        >>> layer.apply(params, x).shape
        (32, 16)
    """

    features: int | tuple[int, ...]
    mesh: AnyMesh | None
    plan: GemmPlan | LayerPlan | None
    axis_names: tuple[str, str] | None
    batch_axes: BatchAxes
    dtype: np.dtype | None
    choices: tuple[tuple[str, Any], ...]
    use_bias: bool

    @property
    def feature_dims(self) -> tuple[int, ...]:
        """The dims of the output features."""
        return self.features if isinstance(self.features, tuple) else (self.features,)

    def init(self, key: Key[Array, ""], in_features: int, *, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
        """Draws parameters, placed as the plan wants them: `w` normal with variance 1 / in_features, `b` zero.

        Args:
            dtype: of the parameters, whatever the layer computes in.

        Raises:
            GemmError: if the key or the dtype is none, or sizes, mesh and plan do not fit.
        """
        in_features = find_count(in_features, "in_features")
        _check_key(key)
        _check_dtype(dtype, "dtype of parameters")
        self._check_sizes(in_features)

        def draw(key: jax.Array) -> dict[str, jax.Array]:
            w = jax.random.normal(key, (in_features, *self.feature_dims), dtype) / math.sqrt(in_features)
            params = {"w": w.astype(dtype)}
            if self.use_bias:
                params["b"] = jnp.zeros(self.feature_dims, dtype)
            return params

        shardings = self.shardings()
        # Inside of another `jit` on Explicit axes, `out_shardings` alone would be lost.
        return jax.device_put(jax.jit(draw, out_shardings=shardings)(key), shardings)

    def shardings(self) -> dict[str, NamedSharding]:
        """Returns the shardings of the parameters, to place those of a checkpoint."""
        mesh, _, layer = self.resolve()
        inner = (None,) * (len(self.feature_dims) - 1)
        specs = {"w": PartitionSpec(*layer.w_spec, *inner)}
        if self.use_bias:
            specs["b"] = PartitionSpec(layer.y_spec(2)[1], *inner)
        return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}

    def apply(self, params: dict[str, jax.Array], x: Float[Array, "*batch K"]) -> Float[Array, "..."]:
        """Computes `x @ w`, plus the bias if there is one; gradients have the dtypes of x and of the parameters."""
        mesh, axes, layer = self.resolve()
        if not isinstance(params, Mapping):
            raise GemmError(f"params must be the dictionary that `init` gives, but is {type(params).__name__}.")
        missing = [name for name in ("w", "b")[: 1 + self.use_bias] if name not in params]
        if missing:
            raise GemmError(
                f"params must have what `init` gives, but lacks {missing[0]!r}; it has {', '.join(params)}."
            )
        for name in ("w", "b")[: 1 + self.use_bias]:
            if not hasattr(params[name], "shape"):
                raise GemmError(f"params[{name!r}] must be an array, but is {type(params[name]).__name__}.")
        w = params["w"]
        if w.shape[1:] != self.feature_dims:
            raise GemmError(f"the layer has {self.features} features, but params['w'] is {w.shape}.")
        if self.dtype is not None and hasattr(x, "astype"):
            x, w = x.astype(self.dtype), w.astype(self.dtype)
        y = multiply_layer(layer, x, w, mesh=mesh, axes=axes, batch_axes=self.batch_axes)
        if not self.use_bias:
            return y
        b = params["b"]
        if any(jax.typeof(b).sharding.spec):  # one that is replicated adds to any y
            call = "layer.shardings()['b']"
            check_array_sharding("params['b']", b, self.shardings()["b"].spec, mesh=mesh, call=call)
        return y + (b if self.dtype is None else b.astype(y.dtype))

    def _check_sizes(self, in_features: int) -> None:
        mesh, _, layer = self.resolve()
        first, *inner = self.feature_dims
        name = "the first dim of features" if inner else "features of the layer"
        if inner:
            chips = num_chips(axes_of(layer.y_spec(2)[1]), mesh.shape)
            check_size(name, first, chips, why=f"the mesh shards y over {chips} along it")
        sizes = (("in_features", in_features), (name, first))
        for (name, size), entry in zip(sizes, layer.w_spec, strict=True):
            chips = num_chips(axes_of(entry), mesh.shape)
            check_size(name, size, chips, why=f"the mesh shards w over {chips} along it")

    def resolve(self) -> tuple[AnyMesh, Axes, ShardedLayer]:
        """Returns the mesh, its two axes, and the layer on it.

        Raises:
            GemmError: if there is no mesh, or plan and choices do not fit it.
        """
        mesh = find_mesh(self.mesh)
        rows, columns = two_axes(mesh, self.axis_names)
        read_batch_axes(self.batch_axes, mesh=mesh, used=(*rows, *columns))
        layer = resolve_plan(self.plan, rows=rows, columns=columns, shape=mesh.shape, **dict(self.choices))
        return mesh, (*rows, *columns), layer


def dense(
    features: int | tuple[int, ...],
    *,
    mesh: AnyMesh | None = None,
    plan: GemmPlan | LayerPlan | Tuning | None = None,
    axis_names: tuple[str, str] | None = None,
    batch_axes: BatchAxes = None,
    dtype: Any = None,
    use_bias: bool = False,
    **choices: Unpack[Choices],
) -> Dense:
    """Makes a fully connected layer on a 2D mesh.

    Args:
        features: the number of output features; or, as for Flax's `DenseGeneral`, several dims of them, of which the
            first is sharded: (heads, 3, head_dim) for queries, keys and values that are split on each chip.
        mesh: by default that of `jax.set_mesh` at each use of the layer.
        plan: as for `matmul`, as are the remaining arguments.
        dtype: of the product, such as jnp.bfloat16 over parameters of float32, which are rounded to it; by default that
            of x and the parameters. Gradients have the dtypes of x and of the parameters.
        use_bias: adds a bias vector; its gradient is summed over the mesh's rows and the batch axes.

    Raises:
        GemmError: as `matmul`; for a mesh that is not set yet, at the first use.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> x, w = jnp.ones((32, 64)), jnp.ones((64, 16))
        >>> layer = jq.gemm.dense(16, mesh=mesh, use_bias=True)
        >>> params = layer.init(jax.random.key(0), 64)
        >>> layer.apply(params, x).shape
        (32, 16)
    """
    layer = Dense(
        features=_find_features(features),
        mesh=mesh,
        plan=plan.plan if isinstance(plan, Tuning) else plan,
        axis_names=axis_names,
        dtype=None if dtype is None else _check_dtype(dtype, "dtype of the layer"),
        batch_axes=tuple(batch_axes) if isinstance(batch_axes, list) else batch_axes,
        choices=tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in choices.items()),
        use_bias=find_flag(use_bias, "use_bias"),
    )
    if mesh is not None or ambient_mesh() is not None:
        layer.resolve()
    else:
        num_rows, num_columns = layer.plan.mesh_shape if isinstance(layer.plan, GemmPlan) else (1, 1)
        shape = {"rows": num_rows, "columns": num_columns}
        resolve_plan(layer.plan, rows=("rows",), columns=("columns",), shape=shape, **choices)
    return layer


def _check_key(key: Any) -> None:
    """Raises a GemmError unless it is one key, new style or old."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    is_new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    is_old = dtype == jnp.uint32 and shape is not None and len(shape) == 1
    if not (is_new or is_old):
        what = f"{dtype}{list(shape)}" if dtype is not None and shape is not None else repr(key)
        raise GemmError(f"key must be one key, such as jax.random.key(0), but is {what:.80}.")


def _check_dtype(dtype: Any, name: str) -> np.dtype:
    """Returns a floating dtype.

    Raises:
        GemmError: if it is something else.
    """
    try:
        is_floating = dtype is not None and jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        is_floating = False
    if not is_floating:
        raise GemmError(f"{name} must be a floating one, but is {dtype!r}.")
    return jnp.dtype(dtype)


def _find_features(features: Any) -> int | tuple[int, ...]:
    """Returns the number of features, or the dims of them."""
    if not isinstance(features, tuple | list):
        return find_count(features, "features")
    if not features:
        raise GemmError("features must be one number or more, but is ().")
    return tuple(find_count(count, "each of features", found=f" in {features!r}") for count in features)
