"""The products and norms of a block by one plan on one mesh, for a model that names its layers and knows no mesh."""

from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.products.batch_axes import BatchAxes
from jaxquard.gemm.algorithms.products.shardings import AnyMesh, find_mesh, two_axes
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.layers.matmul import layer_shardings, multiply_layer
from jaxquard.gemm.layers.norms import layer_norm, rms_norm
from jaxquard.gemm.layers.resolve_plan import resolve_plan
from jaxquard.gemm.problem import GemmPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProducts:
    """The products and norms of a block, made by `products`; `layer` names a layer of the plan.

    Attributes:
        mesh: None for that of `jax.set_mesh` at each use.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> layer = jq.gemm.LayerPlan(name="up", stationary=jq.gemm.Stationary("y"))
        >>> plan = jq.gemm.GemmPlan(algorithm="meshslice", mesh_shape=(4, 2), layers=(layer,))
        >>> planned = jq.gemm.products(plan, mesh=mesh)
        >>> planned.matmul(jnp.ones((32, 64)), jnp.ones((64, 16)), layer="up").shape
        (32, 16)
    """

    plan: GemmPlan
    mesh: AnyMesh | None
    axis_names: tuple[str, str] | None
    batch_axes: BatchAxes

    def matmul(self, x: jax.Array, w: jax.Array, *, layer: str) -> jax.Array:
        """Computes `x @ w`; w[K,...] may have several dims of features, of which the first is sharded."""
        mesh = find_mesh(self.mesh)
        rows, columns = two_axes(mesh, self.axis_names)
        sharded = resolve_plan(self.plan, rows=rows, columns=columns, shape=mesh.shape, layer=layer)
        return multiply_layer(sharded, x, w, mesh=mesh, axes=(*rows, *columns), batch_axes=self.batch_axes)

    def layer_norm(
        self, x: jax.Array, scale: jax.Array, bias: jax.Array | None = None, *, layer: str, epsilon: float = 1e-5
    ) -> jax.Array:
        """Computes `gemm.layer_norm` of the x of a layer."""
        return layer_norm(
            x, scale, bias, mesh=self.mesh, plan=self.plan, layer=layer, axis_names=self.axis_names,
            batch_axes=self.batch_axes, epsilon=epsilon,
        )  # fmt: skip

    def rms_norm(self, x: jax.Array, scale: jax.Array, *, layer: str, epsilon: float = 1e-5) -> jax.Array:
        """Computes `gemm.rms_norm` of the x of a layer."""
        return rms_norm(
            x, scale, mesh=self.mesh, plan=self.plan, layer=layer, axis_names=self.axis_names,
            batch_axes=self.batch_axes, epsilon=epsilon,
        )  # fmt: skip

    def shardings(self, layer: str) -> dict[str, NamedSharding]:
        """Returns the shardings of x, w and y of a layer, of two dims each."""
        return layer_shardings(
            mesh=self.mesh, plan=self.plan, layer=layer, axis_names=self.axis_names, batch_axes=self.batch_axes
        )


def products(
    plan: GemmPlan | Tuning,
    *,
    mesh: AnyMesh | None = None,
    axis_names: tuple[str, str] | None = None,
    batch_axes: BatchAxes = None,
) -> BlockProducts:
    """Binds a plan to a mesh, for the models of `jaxquard.models`: `gpt.loss(..., products=gemm.products(plan))`.

    Args:
        plan: of the layers of a block, by their names; those of the models are qkv, out, ff1 and ff2.
        mesh: as for `matmul`, as are the remaining arguments.

    Raises:
        GemmError: if it is no plan of several layers.

    Example:
        >>> mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (4, 2)), ("rows", "columns"))
        >>> problem = jq.gemm.transformer_block(256, num_rows=512)
        >>> plan = jq.gemm.autotune(problem, "tpu-v4", num_chips=8, mesh_shape=(4, 2)).plan
        >>> sorted(jq.gemm.products(plan, mesh=mesh).shardings("qkv"))
        ['w', 'x', 'y']
    """
    found = plan.plan if isinstance(plan, Tuning) else plan
    if not isinstance(found, GemmPlan):
        raise GemmError(f"plan must be what `autotune` returns, or a GemmPlan; found {plan!r:.80}.")
    batch_axes = tuple(batch_axes) if isinstance(batch_axes, list) else batch_axes
    return BlockProducts(plan=found, mesh=mesh, axis_names=axis_names, batch_axes=batch_axes)
