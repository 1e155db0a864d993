"""Finds the fastest sharding of a step over a mesh (CFP, figure 3).

step    trace_step        a traced step
analyse_step      its blocks and segments
price_segments    the prices of all strategies of the segments
search_plans      the candidate plans, and the fastest that fits
ShardingPlan      the answer, to be applied, saved and printed
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

from jax.sharding import AbstractMesh, Mesh

from jaxquard._jax_compat import without_mesh
from jaxquard.cluster import Cluster, find_preset, load_cluster
from jaxquard.intraop.blocks.two_dimensional import ROWS_2D
from jaxquard.intraop.blocks.unplanned_matmuls import step_notes
from jaxquard.intraop.plan.budgeted_pricer import BudgetedPricer
from jaxquard.intraop.plan.check_arguments import (
    ClusterPricer,
    check_axes,
    check_budget,
    check_pricer,
    check_state_fits,
    check_types,
)
from jaxquard.intraop.plan.plan_record import BaselinePrice, PlannedSegment
from jaxquard.intraop.plan.predict import Prediction, list_programs
from jaxquard.intraop.plan.search_plans import PlanSearch, search_plans
from jaxquard.intraop.plan.segment_prices import StepPrices, price_segments
from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.intraop.segments.analysis import Analysis, analyse_step
from jaxquard.intraop.segments.block_names import names_of_blocks
from jaxquard.intraop.segments.tune_products import tune_products
from jaxquard.intraop.shardings.baselines import CandidatePlan, baselines
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.intraop.step.fingerprint import fingerprint_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing import (
    CompilePricer,
    Failure,
    FailureReason,
    LoopPricer,
    MeasuredPricer,
    MockGpuPricer,
    Price,
    PriceCache,
    Pricer,
    Progress,
    RooflinePricer,
)
from jaxquard.pricing.measure.machine.memory import capacity_bytes
from jaxquard.pricing.program.sharded_program import abstract_mesh, automatic_mesh
from jaxquard.progress import Move, show_progress

_log = logging.getLogger(__name__)
# The default budget, the pricers that have it, and the plans that are priced first.
_BUDGET_S = 300.0
_USUAL = ("data parallel", "megatron")
_SLOW_PRICERS = (MeasuredPricer, CompilePricer, MockGpuPricer)


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
    time_budget_s: float | Literal["default"] | None = "default",
    progress: bool | Move = True,
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
        time_budget_s: seconds for the whole search; None prices everything. By default 300 for a pricer of jaxquard
            that compiles or runs programs, and none for others. The usual plans are priced first, so that the answer is
            no worse than the best of them. Candidates that are far slower than others by their FLOPs and the
            volume that they communicate are not priced, kinds of segments that recur most come next, what compiles at
            the end is ended, and what is left has modelled prices. A note of the plan says how many programs.
        progress: True shows how far the search is, on stderr, once it takes a few seconds: a bar on a terminal, else a
            line every 15 s. False shows nothing; a function is called with (done, total, what is done).

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
    check_types(args, mesh, pricer, memory_limit_bytes, num_finalists, loop_budget_s)
    check_budget(time_budget_s)
    if time_budget_s == "default":
        time_budget_s = _BUDGET_S if pricer is None or isinstance(pricer, _SLOW_PRICERS) else None
    mesh = automatic_mesh(mesh) if isinstance(mesh, Mesh) else abstract_mesh(mesh)
    check_pricer(pricer, cache, mesh)
    axes = {str(axis): size for axis, size in mesh.shape.items()}
    start_s = time.monotonic()
    held = check_axes(axes, batch_axis, every_combination)
    chips = _find_cluster(cluster, mesh, pricer)
    traced = trace_step(step, args)
    with without_mesh(), show_progress(progress, "searching") as move:
        move(0, 1, "analysing the step")
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
            budgeted = None
            if time_budget_s is not None:
                budgeted = BudgetedPricer(
                    used,
                    coarse=RooflinePricer(chips or f"cpu-{mesh.size}", mesh),
                    recurrences=Counter[Hashable](segment.kind for segment in analysis.segments),
                    budget_s=time_budget_s,
                    start_s=start_s,
                )
            asked = budgeted or used
            loop_budget_s = loop_budget_s if isinstance(used, LoopPricer) else 0.0

            def on_progress(progress: Progress) -> None:
                progress.move(move)

            programs = StepPrograms(analysis)
            if budgeted is not None:
                known = baselines(analysis)
                usual, groups = list_programs(programs, [known[name] for name in _USUAL])
                budgeted.price_usual(usual, groups=groups, on_progress=on_progress)
            prices = price_segments(programs, pricer=asked, batch_axis=held, on_progress=on_progress)
            search = partial(
                search_plans,
                prices,
                pricer=asked,
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
        notes = () if budgeted is None else budgeted.notes
        for note in notes:
            _log.info("%s", note)
        return _make_plan(prices, found, mesh, notes=notes)


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


def _make_plan(
    prices: StepPrices, found: PlanSearch, mesh: Mesh | AbstractMesh, *, notes: Sequence[str]
) -> ShardingPlan:
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
            *notes,
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
    known = (failure for failure in failures if failure.reason is not FailureReason.NO_TIME)
    notes = list(dict.fromkeys(f"failed: {failure}" for failure in known))
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
    # A budget of time may leave prices to the model.
    source = next((price for price in found if price.provenance.pricer != "model"), found[0]).provenance
    is_mixed = any(price.provenance.pricer != source.pricer for price in found)
    name = f"{source.pricer} in part, else modelled," if is_mixed else source.pricer
    return f"{name} on {source.num_devices} x {source.device_kind}, JAX {source.jax_version}"
