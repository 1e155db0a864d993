"""A fully connected layer for plain JAX: two functions, `init` and `apply`, over parameters as the user sees them.

Whatever the plan does with W, `params["w"]` is [in_features, features], so that checkpoints, optimizers and other
meshes see it as written.
"""

import math
from dataclasses import dataclass
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Key

from jaxquard.gemm.autotune_table import Tuning
from jaxquard.gemm.layer_products import LayerProducts
from jaxquard.gemm.matmul import matmul_by
from jaxquard.gemm.problem import GemmPlan, LayerPlan
from jaxquard.gemm.product import Axes
from jaxquard.gemm.resolve_plan import Choices, resolve_plan
from jaxquard.gemm.shardings import AnyMesh, two_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """What `dense` makes: `params = layer.init(key, in_features)`, `y = layer.apply(params, x)`."""

    features: int
    mesh: AnyMesh
    axes: Axes
    products: LayerProducts
    use_bias: bool

    def init(self, key: Key[Array, ""], in_features: int, *, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
        """Parameters, placed as the plan wants them: `w` normal with variance 1 / in_features, `b` zero."""

        def draw(key: jax.Array) -> dict[str, jax.Array]:
            w = jax.random.normal(key, (in_features, self.features), dtype) / math.sqrt(in_features)
            params = {"w": w.astype(dtype)}
            if self.use_bias:
                params["b"] = jnp.zeros((self.features,), dtype)
            return params

        return jax.jit(draw, out_shardings=self.shardings())(key)

    def shardings(self) -> dict[str, NamedSharding]:
        """How the parameters are cut, to place what a checkpoint holds."""
        specs = {"w": self.products.w_spec}
        if self.use_bias:
            specs["b"] = PartitionSpec(self.products.y_spec(2)[1])
        return {name: NamedSharding(self.mesh, spec) for name, spec in specs.items()}

    def apply(self, params: dict[str, jax.Array], x: Float[Array, "*batch K"]) -> Float[Array, "*batch N"]:
        """`x @ w`, and the bias if there is one."""
        y = matmul_by(self.products, x, params["w"], mesh=self.mesh, axes=self.axes)
        return y + params["b"] if self.use_bias else y


def dense(
    features: int,
    *,
    mesh: AnyMesh,
    plan: GemmPlan | LayerPlan | Tuning | None = None,
    axis_names: tuple[str, str] | None = None,
    use_bias: bool = False,
    **choices: Unpack[Choices],
) -> Dense:
    """A fully connected layer on a 2D mesh.

    Args:
        features: of the result.
        mesh: and the others: as for `matmul`.
        use_bias: whether to add a vector; its gradient is summed over the mesh's rows.
    """
    rows, columns = two_axes(mesh, axis_names)
    products = resolve_plan(plan, rows=rows, columns=columns, shape=mesh.shape, **choices)
    return Dense(features=features, mesh=mesh, axes=(*rows, *columns), products=products, use_bias=use_bias)
