"""Finds the fastest sharding of a step over a mesh (CFP, figure 3).

step    trace_step        a traced step
analyse_step      its blocks and segments
price_segments    the prices of all strategies of the segments
search_plans      the candidate plans, and the fastest that fits
ShardingPlan      the answer, to be applied, saved and printed
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from jaxquard._jax_compat import without_mesh
from jaxquard.cluster import Cluster, find_preset, load_cluster
from jaxquard.errors import ShardingError
from jaxquard.intraop.blocks.two_dimensional import ROWS_2D
from jaxquard.intraop.blocks.unplanned_matmuls import step_notes
from jaxquard.intraop.plan.check_state import check_state_fits
from jaxquard.intraop.plan.plan_record import BaselinePrice, PlannedSegment
from jaxquard.intraop.plan.predict import Prediction
from jaxquard.intraop.plan.search_plans import PlanSearch, search_plans
from jaxquard.intraop.plan.segment_prices import StepPrices, price_segments
from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.intraop.segments.analysis import Analysis, analyse_step
from jaxquard.intraop.segments.block_names import names_of_blocks
from jaxquard.intraop.segments.tune_products import tune_products
from jaxquard.intraop.shardings.baselines import CandidatePlan
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.intraop.step.fingerprint import fingerprint_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing import (
    CompilePricer,
    Failure,
    MeasuredPricer,
    MockGpuPricer,
    OnProgress,
    Price,
    PriceCache,
    Pricer,
)
from jaxquard.pricing.measure.machine.memory import capacity_bytes
from jaxquard.pricing.program.sharded_program import abstract_mesh, automatic_mesh

# They price for a cluster and run nothing on the mesh, of which only the axes matter.
ClusterPricer = CompilePricer | MockGpuPricer


def search_sharding(
    step: Callable[..., Any],
    args: Sequence[Any],
    *,
    mesh: Mesh | AbstractMesh,
    memory_limit_bytes: int | None = None,
    batch_axis: str | None = None,
    every_combination: bool = False,
    cluster: Cluster | str | None = None,
    pricer: Pricer | None = None,
    cache: PriceCache | Literal["default"] | None = "default",
    num_finalists: int = 8,
    loop_budget_s: float = 300.0,
    on_progress: OnProgress | None = None,
) -> ShardingPlan:
    """Finds the fastest sharding of a training step by pricing its recurring segments (CFP).

    Args:
        step: a plain training step, `step(state, batch) -> (state, metrics)` or of any other form. An argument that the
            step returns again, anywhere in its result, with the same leaves, is state. A single array is state only if
            it is the first argument.
        args: its arguments, or their shapes (`jax.ShapeDtypeStruct`, `jax.eval_shape`).
        mesh: one or two axes of devices of this process; with a pricer that runs nothing on them (`CompilePricer`,
            `MockGpuPricer`), of any devices, or none (`jax.sharding.AbstractMesh`).
        memory_limit_bytes: the step's memory limit on each device; by default the memory of the device, that of the
            pricer's cluster, or no limit where the pricer does not say.
        batch_axis: the mesh axis over which every block shards its batch; by default the first of two axes, as in the
            paper, and none on a mesh of one axis.
        every_combination: searches all choices on every mesh axis, with no batch axis: on two axes, nine choices for
            most blocks instead of three.
        cluster: the chips and links of the mesh, as a preset, the path of a TOML file or a `Cluster`. With it, blocks
            on a mesh of two axes may also be 2D products (MeshSlice), in as many slices as the autotuner finds best on
            these chips. By default the pricer's cluster, or the preset of the mesh's GPUs or TPUs; for others, such as
            CPUs, none.
        pricer: prices programs; by default a `MeasuredPricer`, which runs them on the mesh.
        cache: the cache of measured prices: that of the user by default, another one, or None. A pricer that is given
            has its own.
        num_finalists: the number of plans that are priced as whole steps, or in pairs of neighbouring segments, before
            one is chosen. A quarter as many of the fastest are also priced with their state sharded in two ways; the
            baselines always are.
        loop_budget_s: seconds in which the fastest plans and the two best baselines are compiled whole and run as
            training loops, in the end. The time of the plan is then what such a loop takes: the median over steps, each
            with a batch that comes from the host. 0 leaves it out: the time is the minimum of runs, which is less.
        on_progress: called with each `Progress` of the pricing.

    Raises:
        ShardingError: if the step has nothing to shard, the mesh divides nothing, or no plan fits in memory.
        PricingError: if the devices do not respond.

    Example:
        >>> def train_step(weight, batch):
        ...     loss, grad = jax.value_and_grad(lambda weight: jnp.mean((batch @ weight) ** 2))(weight)
        ...     return weight - 0.1 * grad, loss
        >>> args = (jnp.ones((16, 32)), jnp.ones((64, 16)))
        >>> mesh = jax.make_mesh((8,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> plan = jq.search_sharding(train_step, args, mesh=mesh, num_finalists=0)
        >>> weight, loss = plan.apply(train_step, donate=False)(plan.shard(args[0]), args[1])
        >>> float(loss)
        256.0
    """
    _check_types(args, mesh, pricer, memory_limit_bytes, num_finalists, loop_budget_s)
    mesh = automatic_mesh(mesh) if isinstance(mesh, Mesh) else abstract_mesh(mesh)
    _check_pricer(pricer, cache, mesh)
    axes = {str(axis): size for axis, size in mesh.shape.items()}
    held = _check_axes(axes, batch_axis, every_combination)
    chips = _find_cluster(cluster, mesh, pricer)
    traced = trace_step(step, args)
    with without_mesh():
        analysis = analyse_step(
            traced,
            axes=axes,
            every_combination=held is None,
            plan_products=partial(tune_products, axes=axes, cluster=chips, batch_axis=held),
        )
        own = MeasuredPricer(mesh, cache=cache) if pricer is None and isinstance(mesh, Mesh) else None
        try:
            used = pricer or own
            assert used is not None
            check_state_fits(
                traced,
                axes=axes,
                pricer=used,
                memory_limit_bytes=_capacity(used, mesh) if memory_limit_bytes is None else memory_limit_bytes,
                is_limit_given=memory_limit_bytes is not None,
            )
            prices = price_segments(StepPrograms(analysis), pricer=used, batch_axis=held, on_progress=on_progress)
            search = partial(
                search_plans,
                prices,
                pricer=used,
                num_finalists=num_finalists,
                loop_budget_s=loop_budget_s,
                on_progress=on_progress,
            )
            found = search(memory_limit_bytes=memory_limit_bytes)
            if memory_limit_bytes is None and found.size_bytes > (capacity := _capacity(used, mesh)):
                found = search(memory_limit_bytes=int(capacity), is_limit_given=False)
        finally:
            if own is not None:
                own.close()
        return _make_plan(prices, found, mesh)


def _find_cluster(cluster: Cluster | str | None, mesh: Mesh | AbstractMesh, pricer: object) -> Cluster | None:
    """Returns the cluster that a user names, the pricer's, or that of the mesh's devices; None if there is none."""
    if cluster is None and isinstance(pricer, ClusterPricer):
        return pricer.cluster
    if cluster is None and isinstance(mesh, Mesh):
        cluster = find_preset(mesh.devices.flat[0].device_kind)
    return None if cluster is None else load_cluster(cluster)


def _capacity(pricer: Pricer, mesh: Mesh | AbstractMesh) -> float:
    """Returns the memory limit of each device where the user sets none."""
    if isinstance(pricer, ClusterPricer):
        return pricer.capacity_bytes
    if not isinstance(pricer, MeasuredPricer) or not isinstance(mesh, Mesh):
        return math.inf
    capacity = capacity_bytes(mesh)
    return math.inf if capacity is None else capacity


def _check_types(
    args: object, mesh: object, pricer: object, memory_limit_bytes: object, num_finalists: object, loop_budget_s: object
) -> None:
    if not isinstance(args, tuple | list):
        raise ShardingError(
            f"args must be a tuple of the step's arguments, but is of type {type(args).__name__}. For `step(state, "
            "batch)` pass (state, batch); for `step(state)` pass (state,)."
        )
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise ShardingError(f"mesh must be a jax.sharding.Mesh, but is {mesh!r}. Make one with jax.make_mesh.")
    devices = mesh.devices.flat if isinstance(mesh, Mesh) and not isinstance(pricer, ClusterPricer) else ()
    elsewhere = {device.process_index for device in devices} - {jax.process_index()}
    if elsewhere:
        raise ShardingError(
            f"the mesh has devices of other processes ({', '.join(map(str, sorted(elsewhere)))}), which would have to "
            "run every candidate as often as this one. Search on the devices of one process (jax.local_devices()), or "
            "with a pricer that needs none of them (CompilePricer, MockGpuPricer)."
        )
    _check_numbers(memory_limit_bytes, num_finalists)
    is_time = isinstance(loop_budget_s, int | float | np.number) and not isinstance(loop_budget_s, bool)
    if not is_time or not loop_budget_s >= 0:
        raise ShardingError(f"loop_budget_s={loop_budget_s!r}, but it is a number of seconds, 0 or more. 300 is usual.")


def _check_pricer(pricer: object, cache: object, mesh: Mesh | AbstractMesh) -> None:
    missing = [name for name in ("price_all", "compare") if not callable(getattr(pricer, name, None))]
    if pricer is not None and missing:
        raise ShardingError(
            f"pricer must be a jaxquard.pricing.Pricer, but {type(pricer).__name__} has no {' and no '.join(missing)}. "
            "Leave it out to measure on the mesh."
        )
    if isinstance(mesh, AbstractMesh) and (pricer is None or isinstance(pricer, MeasuredPricer)):
        raise ShardingError(
            "the mesh has no devices (jax.sharding.AbstractMesh), so nothing can be measured on it. Pass a pricer for "
            "a cluster, such as jaxquard.pricing.CompilePricer('h100-8', mesh), or a mesh of devices."
        )
    if isinstance(pricer, ClusterPricer) and dict(pricer.mesh.shape) != dict(mesh.shape):
        raise ShardingError(
            f"the pricer is for a mesh of {dict(pricer.mesh.shape)}, but the one to plan for is {dict(mesh.shape)}. "
            "Make it with the same mesh."
        )
    if isinstance(pricer, MeasuredPricer) and isinstance(mesh, Mesh) and pricer.mesh != mesh:
        raise ShardingError(
            f"the pricer measures on another mesh than the one to plan for: {_describe(pricer.mesh)}, not "
            f"{_describe(mesh)}. Make it with MeasuredPricer(mesh)."
        )
    if cache is not None and cache != "default" and not isinstance(cache, PriceCache):
        raise ShardingError(
            f"cache must be a jaxquard.pricing.PriceCache, None or 'default', but is {cache!r}. For a folder pass "
            "PriceCache(folder)."
        )


def _describe(mesh: Mesh) -> str:
    sizes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    return f"({sizes}) of devices {', '.join(str(device.id) for device in mesh.devices.flat)}"


def _check_numbers(memory_limit_bytes: Any, num_finalists: Any) -> None:
    is_size = isinstance(memory_limit_bytes, int | float | np.number) and not isinstance(memory_limit_bytes, bool)
    if memory_limit_bytes is not None and (not is_size or not math.isfinite(memory_limit_bytes)):
        raise ShardingError(
            f"memory_limit_bytes={memory_limit_bytes!r} is no number of bytes. 16 MiB are 16 * 2**20; None is all that "
            "the devices have."
        )
    if memory_limit_bytes is not None and memory_limit_bytes <= 0:
        raise ShardingError(
            f"memory_limit_bytes={memory_limit_bytes!r} leaves nothing. 16 MiB are 16 * 2**20; None is all that the "
            "devices have."
        )
    is_count = isinstance(num_finalists, int | np.integer) and not isinstance(num_finalists, bool)
    if not is_count or num_finalists < 0:
        raise ShardingError(
            f"num_finalists={num_finalists!r}, but it is a number of plans. 0 prices the baselines alone, 8 is usual."
        )


def _check_axes(axes: dict[str, int], batch_axis: str | None, every_combination: bool) -> str | None:
    """Returns the axis over which every block shards its batch; None if blocks are free on every axis."""
    if not 1 <= len(axes) <= 2:
        raise ShardingError(f"a mesh has one or two axes to shard over, but found {len(axes)}: {axes}.")
    if batch_axis is not None and batch_axis not in axes:
        raise ShardingError(
            f"batch_axis={batch_axis!r}, but the mesh has the axes {', '.join(axes)}. Name one of them, or leave it "
            "out for the first of two axes."
        )
    if batch_axis is not None and every_combination:
        raise ShardingError(
            f"batch_axis={batch_axis!r} holds one axis to the batch, but every_combination=True holds none. Pass one "
            "of the two."
        )
    if every_combination or (batch_axis is None and len(axes) == 1):
        return None
    return batch_axis or next(iter(axes))


def _make_plan(prices: StepPrices, found: PlanSearch, mesh: Mesh | AbstractMesh) -> ShardingPlan:
    analysis = prices.analysis
    plan, prediction = found.plans[found.chosen], found.predictions[found.chosen]
    program = write_whole_step(prices.programs, plan.assignment, storage=plan.storage)
    return ShardingPlan(
        fingerprint=fingerprint_step(analysis.step),
        axes=dict(analysis.axes),
        segments=tuple(_planned_segments(analysis, plan, prediction)),
        storage=plan.storage,
        specs=dict(zip(analysis.step.arg_names, program.in_specs, strict=False)),
        time_s=prediction.time_s,
        sum_s=prediction.sum_s,
        size_bytes=prediction.size_bytes,
        num_programs=prices.num_programs,
        baselines=tuple(
            BaselinePrice(name=one.name, time_s=one.time_s, size_bytes=one.size_bytes)
            for one in found.baseline_predictions
        ),
        frontier=tuple((point.time_s, point.size_bytes) for point in found.points),
        notes=(
            *_notes(analysis, [*prices.failures, *found.failures], gap_s=found.gap_s),
            *_rematerialized_notes(prices),
        ),
        provenance=_provenance(prices),
        products={
            str(number): analysis.products[number] for number, names in plan.assignment.items() if ROWS_2D in names
        },
        mesh=mesh if isinstance(mesh, Mesh) else None,
    )


def _planned_segments(analysis: Analysis, plan: CandidatePlan, prediction: Prediction) -> Iterator[PlannedSegment]:
    """Yields the rows of the plan's table."""
    names = names_of_blocks(analysis)
    for segment, (time_s, reshard_s, size_bytes) in zip(analysis.segments, prediction.segments, strict=True):
        yield PlannedSegment(
            kind=segment.kind,
            lines=tuple(names[block].line for block in segment.blocks),
            parameters=tuple(names[block].paths for block in segment.blocks),
            scopes=tuple(dict.fromkeys(scope for block in segment.blocks for scope in names[block].scopes)),
            strategy=tuple(tuple(plan.assignment[block]) for block in segment.blocks),
            time_s=time_s,
            reshard_s=reshard_s,
            size_bytes=size_bytes,
        )


def _notes(analysis: Analysis, failures: Sequence[Failure], *, gap_s: float) -> tuple[str, ...]:
    notes = list(dict.fromkeys(f"failed: {failure}" for failure in failures))
    if gap_s > 0:
        notes.append(
            f"the search did not prove its answer: by its prices, a plan that is {gap_s * 1e3:.3g} ms faster may fit"
        )
    return (*notes, *step_notes(analysis.graph))


def _rematerialized_notes(prices: StepPrices) -> tuple[str, ...]:
    """Returns a note on the candidates of which the partitioner gathers values whole; none if there are none."""
    counts = prices.rematerialized
    if not counts:
        return ()
    worst = max(counts, key=lambda name: counts[name])
    return (
        f"of {len(counts)} of {prices.num_programs} priced programs the compiler gathers values whole, as it finds no "
        f"better way between two shardings (involuntary full rematerialization); of most in {worst} ({counts[worst]}). "
        "Their prices count that; the log of jaxquard names them all",
    )


def _provenance(prices: StepPrices) -> str:
    found = [price for kind in prices.kinds.values() for price in kind.prices if isinstance(price, Price)]
    if not found:
        return ""
    source = found[0].provenance
    return f"{source.pricer} on {source.num_devices} x {source.device_kind}, JAX {source.jax_version}"
