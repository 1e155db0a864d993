"""Plans a model by its name in closed form: all strategies bounded, the promising ones priced, the finalists played.

Prices are those of `pricing.price_step` under one framework's constants for all strategies, baselines among them:
JaxPP's unless asked otherwise, which is what a pipeline of actors on XLA reaches (docs/pricing.md has its errors). MFU
counts model FLOPs with all pairs of tokens in attention, as Megatron does, over the data sheet's peak.
"""

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from jaxquard.cluster import ChipSpeeds, chip_speeds
from jaxquard.cluster.cluster import Cluster
from jaxquard.cluster.cluster_file import load_cluster
from jaxquard.errors import PlanError
from jaxquard.planner.named.alternatives import list_alternatives
from jaxquard.planner.named.baselines.list_baselines import PlayedBaseline, describe_baselines, play_baselines
from jaxquard.planner.named.choices import SCHEDULE_NAMES, STORAGES, ChoiceWish, actor_axes, mesh_text, read_wishes
from jaxquard.planner.named.choose import TIE, choose_simplest
from jaxquard.planner.named.describe import describe_settings, describe_stages, memory_terms
from jaxquard.planner.named.infeasible import refuse_memory, refuse_space
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.models import find_named_model
from jaxquard.planner.named.play_strategy import PlayedStrategy, play_fastest
from jaxquard.planner.named.scale import scale_transformer
from jaxquard.planner.named.search import PricedStrategy, StrategySearch
from jaxquard.planner.named.space import list_space
from jaxquard.planner.record.plan import Plan, PlanAlternative, PlanBaseline, PlanSearchLog, Recompute
from jaxquard.planner.record.tables import bytes_text, percent_text
from jaxquard.pricing.model.price_step import RESERVED_SHARE
from jaxquard.pricing.model.system import SystemProfile, find_system
from jaxquard.pricing.model.transformer import Transformer
from jaxquard.progress import Move, show_progress

# Strategies that are played on the cluster: the fastest, and of further ones that may tie the first of each kind.
_NUM_FINALISTS, _NUM_TIES, _NUM_KINDS = 12, 60, 24
_DEFAULT_SYSTEM = "JaxPP"


def plan_named(
    model: str | Transformer,
    cluster: str | Cluster,
    *,
    global_batch: int,
    seq: int | None = None,
    scale: int = 1,
    fix: Mapping[str, Any] | None = None,
    forbid: Mapping[str, Any] | None = None,
    memory_limit_bytes: int | None = None,
    time_budget_s: float | None = None,
    system: str | SystemProfile = _DEFAULT_SYSTEM,
    dtype: str = "bf16",
    chip: ChipSpeeds | None = None,
    progress: bool | Move = True,
) -> Plan:
    """Plans a transformer on all chips of a cluster.

    Args:
        model: a name such as "llama3:405b", or the sizes of a transformer.
        cluster: a preset with its shape, such as "h100-8x2048", a file, or a description.
        global_batch: sequences of a step.
        seq: tokens of a sequence; by default as the model was trained.
        scale: divides all sizes of the model, so that it runs on a few devices (`scale_transformer`).
        fix: choices that the plan must have, such as `{"schedule": "1f1b", "stages": 8, "tensor": 8}`.
        forbid: choices that it must not have, such as `{"recompute": "full"}`.
        memory_limit_bytes: on a chip; by default what the chip has, less 6 % for all that is not the model's.
        time_budget_s: for the search; what it leaves out is in the plan's log.
        system: the framework whose constants price all strategies.
        dtype: of products.
        chip: instead of the cluster's own.
        progress: True shows how far the search is, on stderr, once it takes a few seconds; False shows nothing; a
            function is called with the strategies priced, those that may fit, and a word.

    Raises:
        PlanError: if the model, a wish or the batch cannot be planned; the message says what stands against it.
        InfeasiblePlanError: if no strategy fits the memory.

    Example:
        >>> from jaxquard.planner.named.plan_named import plan_named
        >>> plan = plan_named("llama3:8b", "h100-8", global_batch=64, fix={"tensor": 2})
        >>> plan.num_devices, plan.axes["tensor"], 0.3 < plan.mfu < 0.6
        (8, 2, True)
    """
    started_s = time.monotonic()
    transformer = _find_transformer(model, seq, scale)
    step = _model_step(transformer, cluster, global_batch, memory_limit_bytes, system, dtype, chip)
    wishes = read_wishes(fix, forbid)
    space = list_space(step, wishes)
    if not len(space):
        raise refuse_space(step, wishes)
    deadline_s = None if time_budget_s is None else started_s + time_budget_s
    with show_progress(progress, "planning") as move:
        search = StrategySearch(step=step, space=space, deadline_s=deadline_s, on_progress=move)
        finalists = _finalists(search)
    if not finalists and search.has_ended_early:
        raise PlanError(
            f"the budget of {time_budget_s:g} s was over with {search.num_priced} of {search.num_fitting} strategies "
            "priced, none of which fits: the others are without a price. Give a larger time_budget_s, or fix a part."
        )
    if not finalists:
        raise refuse_memory(step, wishes, search)
    name = model.strip().lower() if isinstance(model, str) else "transformer"
    played = play_fastest(step, finalists)
    baselines = play_baselines(step, name)
    best, ties = choose_simplest(step, [*played, *_allowed(step, wishes, baselines)])
    return _make_plan(
        step,
        best,
        name=name if scale == 1 else f"{name} / {scale}",
        baselines=describe_baselines(step, baselines, best),
        alternatives=list_alternatives(step, search, best),
        notes=(*ties, *_doubts(step, best)),
        log=PlanSearchLog(
            num_seen=len(space),
            num_pruned=len(space) - search.num_priced - search.num_unpriced,
            num_priced=search.num_priced,
            num_unpriced=search.num_unpriced,
            num_simulated=sum(item.is_played for item in played),
            time_s=time.monotonic() - started_s,
            left_out=(*space.left_out, *map(_excluded, wishes), *_unpriced(search, time_budget_s)),
        ),
    )


def _finalists(search: StrategySearch) -> tuple[PricedStrategy, ...]:
    """Returns the strategies to play: the fastest, and the fastest of each mesh and schedule that may tie with them."""
    fastest = search.fastest(_NUM_TIES)
    most_s = fastest[0].price.time_s * (1 + TIE) if fastest else 0.0
    kinds: dict[Hashable, PricedStrategy] = {}
    for item in fastest:
        par = item.parallelism
        if item.price.time_s <= most_s:
            kinds.setdefault((mesh_text(par), par.schedule, par.zero, par.recompute), item)
    others = [item for item in list(kinds.values())[:_NUM_KINDS] if item not in fastest[:_NUM_FINALISTS]]
    return (*fastest[:_NUM_FINALISTS], *others)


def _allowed(
    step: ModelStep, wishes: Sequence[ChoiceWish], baselines: Sequence[PlayedBaseline]
) -> list[PlayedStrategy]:
    """Returns the baselines that fit and meet the wishes."""
    others = [baseline.played for baseline in baselines if baseline.played]
    return [
        other
        for other in others
        if other.price.peak_bytes <= step.limit_bytes and all(wish.allows(other.parallelism) for wish in wishes)
    ]


def _doubts(step: ModelStep, best: PlayedStrategy) -> Iterator[str]:
    """Says what in a plan nobody has seen: an utilisation above the published ones, memory by a fitted constant."""
    record = chip_speeds(step.cluster).best_mfu.get(step.dtype, 1.0)
    mfu = step.mfu(best.time_s)
    if mfu > record:
        yield (
            f"an MFU of {percent_text(mfu)} is more than the best that is published on this chip "
            f"({percent_text(record)} in {step.dtype}): the step may well take longer"
        )
    share = step.system.activation_share
    if share < 1:
        whole = replace(step.system, activation_share=1.0)
        peak_bytes = replace(step, system=whole).price(best.parallelism).peak_bytes
        if peak_bytes > step.limit_bytes:
            yield (
                f"it fits because {step.system.name} keeps {percent_text(share)} of the activations that papers count, "
                f"a fitted share; with all of them it takes {bytes_text(round(peak_bytes))} a device"
            )


def _find_transformer(model: str | Transformer, seq: int | None, scale: int) -> Transformer:
    transformer = find_named_model(model).transformer if isinstance(model, str) else model
    transformer = scale_transformer(transformer, scale)
    if seq is None:
        return transformer
    check_positive(seq, "seq")
    return replace(transformer, seq=seq)


def _model_step(
    transformer: Transformer,
    cluster: str | Cluster,
    global_batch: int,
    memory_limit_bytes: int | None,
    system: str | SystemProfile,
    dtype: str,
    chip: ChipSpeeds | None,
) -> ModelStep:
    check_positive(global_batch, "global_batch")
    if memory_limit_bytes is not None:
        check_positive(memory_limit_bytes, "memory_limit_bytes")
    cluster = load_cluster(cluster)
    limit = cluster.memory.size_bytes * (1 - RESERVED_SHARE) if memory_limit_bytes is None else memory_limit_bytes
    return ModelStep(
        transformer=transformer,
        cluster=cluster,
        system=find_system(system) if isinstance(system, str) else system,
        global_batch=int(global_batch),
        dtype=dtype,
        limit_bytes=limit,
        chip=chip,
    )


def check_positive(value: Any, name: str) -> None:
    """Raises a PlanError unless it is a whole number of 1 or more."""
    is_whole = isinstance(value, Real) and not isinstance(value, bool) and float(value).is_integer()
    if not is_whole or value < 1:
        raise PlanError(f"{name} must be a whole number of 1 or more, but is {value!r}.")


def _make_plan(
    step: ModelStep,
    best: PlayedStrategy,
    *,
    name: str,
    baselines: tuple[PlanBaseline, ...],
    alternatives: tuple[PlanAlternative, ...],
    notes: tuple[str, ...],
    log: PlanSearchLog,
) -> Plan:
    par = best.parallelism
    provenance = f"closed form of {step.cluster.name} with the constants of {step.system.name}" + (
        ", played on its links" if best.is_played else ""
    )
    return Plan(
        model=name,
        cluster=step.cluster.name,
        num_devices=step.num_devices,
        num_actors=par.pipeline,
        axes=actor_axes(par),
        schedule=SCHEDULE_NAMES[par.schedule],
        num_microbatches=par.num_microbatches,
        microbatch_size=par.microbatch * par.data,
        global_batch=step.global_batch,
        recompute=Recompute(par.recompute),
        storage=STORAGES[par.zero],
        stages=describe_stages(step, par, provenance),
        time_s=best.time_s,
        times=best.terms,
        memory=memory_terms(best.price.memory),
        memory_limit_bytes=round(step.limit_bytes),
        mfu=step.mfu(best.time_s),
        flops=step.flops,
        baselines=baselines,
        alternatives=alternatives,
        notes=notes,
        log=log,
        provenance=provenance,
        settings=describe_settings(par),
    )


def _excluded(wish: ChoiceWish) -> str:
    return f"what the wish to {wish} excludes"


def _unpriced(search: StrategySearch, time_budget_s: float | None) -> tuple[str, ...]:
    if not search.has_ended_early:
        return ()
    return (
        f"the budget of {time_budget_s:g} s left {search.num_unpriced:,} strategies without a price, those with the "
        "larger bounds",
    )
