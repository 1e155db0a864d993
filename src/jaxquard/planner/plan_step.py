"""`plan`: plans a step of the user's own, or a loss, for a cluster; `apply` distributes the step under its plan."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxquard.cluster import Cluster
from jaxquard.errors import PlanError
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.plan_options import read_options
from jaxquard.planner.search.problem import loss_problem, step_problem
from jaxquard.planner.search.targets import find_plan_target, mesh_maker
from jaxquard.planner.step.apply_plan import apply_plan
from jaxquard.planner.step.optimizer import GradientOptimizer
from jaxquard.runtime.distributed import DistributedStep
from jaxquard.runtime.remote_mesh import RemoteMesh


def plan(
    step: Callable[..., Any],
    args: Sequence[Any],
    *,
    cluster: Any = None,
    devices: Sequence[jax.Device] | int | None = None,
    name: str | None = None,
    **options: Any,
) -> Plan:
    """Plans a step of the user's own, whose gradients are `accumulate_grads(fn, jaxquard.schedules.AUTO)(batch)`.

    Args:
        step: a training step; its loop has as many microbatches as its batch.
        args: its arguments, or their types.
        cluster: the name of a preset, a file or a `Cluster`; by default what the devices are.
        devices: to plan for, or their number; by default `jax.devices()`, or all of the cluster.
        name: of the model in the plan; by default the step's.
        **options: see `PlanOptions`.

    Raises:
        PlanError: if the step has no such loop, or a wish cannot be met.
        InfeasiblePlanError: if no plan fits the memory.

    Example:
        >>> def train_step(weights, batch):
        ...     def gradients(microbatch):
        ...         return jax.grad(lambda weights: jnp.mean((microbatch @ weights) ** 2))(weights)
        ...
        ...     grads = jq.accumulate_grads(gradients, jq.schedules.AUTO)(batch)
        ...     return weights - 0.1 * grads
        >>> args = jnp.ones((16, 8)), jnp.ones((4, 8, 16))  # 4 microbatches of 8 rows
        >>> plan = jq.plan(train_step, args, cluster="h100-8")
        >>> plan.num_devices, plan.num_microbatches
        (8, 4)
    """
    target = find_plan_target(cluster=cluster, devices=devices, runtime="in_process")
    make_mesh = mesh_maker(target, {}) if target.has_devices else None
    return find_plan(step_problem(step, args, name=name), target, read_options(options), make_mesh=make_mesh)


def plan_loss(
    loss: Callable[..., Any],
    optimizer: GradientOptimizer,
    args: Sequence[Any],
    *,
    cluster: Cluster | str | None = None,
    num_devices: int | None = None,
    has_aux: bool = False,
    loss_reduction: str | None = None,
    rng: Any = None,
    sum_dtype: Any = None,
    name: str | None = None,
    **options: Any,
) -> Plan:
    """Plans a loss and an optimizer, as `parallelize` does, and runs nothing but the best plans on devices at hand.

    Args:
        args: the parameters and a batch: arrays, or their types.
        num_devices: to plan for; by default those of the cluster, or of this process.
        **options: see `PlanOptions`.

    Raises:
        PlanError: if the loss, the batch or a wish does not fit.
        InfeasiblePlanError: if no plan fits the memory.
    """
    problem, _ = loss_problem(
        loss, optimizer, args, has_aux=has_aux, loss_reduction=loss_reduction, rng=rng, sum_dtype=sum_dtype, name=name
    )
    target = find_plan_target(cluster=cluster, devices=num_devices, runtime="in_process")
    make_mesh = mesh_maker(target, {}) if target.has_devices else None
    return find_plan(problem, target, read_options(options), make_mesh=make_mesh)


def apply(step: Callable[..., Any], args: Sequence[Any], plan: Plan, *, mesh: RemoteMesh) -> DistributedStep:
    """Distributes a step of the user's own under its plan.

    Raises:
        PlanError: if the plan is for another step or for other actors.

    Example:
        >>> def train_step(weights, batch):
        ...     def gradients(microbatch):
        ...         return jax.grad(lambda weights: jnp.mean((microbatch @ weights) ** 2))(weights)
        ...
        ...     return weights - 0.1 * jq.accumulate_grads(gradients, jq.schedules.AUTO)(batch)
        >>> args = jnp.ones((16, 8)), jnp.ones((4, 8, 16))  # 4 microbatches of 8 rows
        >>> plan = jq.plan(train_step, args, devices=2, num_measured=0)
        >>> with jq.RemoteMesh((plan.num_actors,), tuple(plan.axes.values()), tuple(plan.axes)) as mesh:
        ...     weights = jq.apply(train_step, args, plan, mesh=mesh)(*args)
        ...     weights.shape
        (16, 8)
    """
    applied = apply_plan(step, args, plan)
    if mesh.num_actors != applied.num_actors or dict(mesh.abstract_mesh.shape) != applied.axes:
        raise PlanError(
            f"the plan has {applied.num_actors} actors, each with a mesh of {applied.axes}, but found {mesh!r}. Make "
            f"RemoteMesh(({applied.num_actors},), {tuple(applied.axes.values())}, {tuple(applied.axes)})."
        )
    return mesh.distributed(applied.fn, in_shardings=applied.in_shardings, donate_argnums=applied.donate_argnums)
