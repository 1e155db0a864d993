"""The shardings that a layer wants of its matrices: placed once, nothing moves before a product."""

from typing import Unpack

from jax.sharding import NamedSharding

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.choices import find_count
from jaxquard.gemm.algorithms.shardings import AnyMesh, find_mesh, two_axes
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.layers.resolve_plan import Choices, resolve_plan
from jaxquard.gemm.problem import GemmPlan, LayerPlan


def layer_shardings(
    *,
    mesh: AnyMesh | None = None,
    plan: GemmPlan | LayerPlan | Tuning | None = None,
    axis_names: tuple[str, str] | None = None,
    num_x_dims: int = 2,
    **choices: Unpack[Choices],
) -> dict[str, NamedSharding]:
    """Returns the shardings of "x", "w" and "y" in `matmul` with the same arguments.

    Args:
        num_x_dims: of x and y, leading dims included.

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
    layer = resolve_plan(plan, rows=rows, columns=columns, shape=mesh.shape, **choices)
    specs = {"x": layer.x_spec(num_x_dims), "w": layer.w_spec, "y": layer.y_spec(num_x_dims)}
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
