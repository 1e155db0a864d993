"""The pipeline that a command line asks for: its schedule, the costs of its stages, the links between its actors."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from jaxquard.cli.console import count
from jaxquard.cli.exit_codes import UsageError, did_you_mean
from jaxquard.cli.options import match_name
from jaxquard.errors import StepPriceError
from jaxquard.schedules import SCHEDULES, Custom, Schedule, make_schedule

if TYPE_CHECKING:
    from jaxquard.cluster import Cluster
    from jaxquard.ir.timeline import Timeline
    from jaxquard.pricing import Parallelism, Transformer
    from jaxquard.simulate import ActorLink, StageCost

# A pipeline of more takes minutes.
_MOST_TASKS = 2_000_000
# Tensor parallelism beyond a host's links is slow, and hosts have 8 chips.
_USUAL_TENSOR = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """A transformer on a cluster: what a utilisation is computed from."""

    transformer: "Transformer"
    parallelism: "Parallelism"
    cluster: "Cluster"
    system: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSetup:
    """All that is played.

    Attributes:
        limit_bytes: memory of a chip that the step may take; None: unknown.
        run: of a model; None if only times were given.
        notes: lines about choices that were made.
    """

    title: str
    schedule: Schedule
    num_microbatches: int
    costs: "Sequence[StageCost]"
    links: "Mapping[tuple[int, int], ActorLink]"
    limit_bytes: int | None = None
    run: ModelRun | None = None
    notes: tuple[str, ...] = ()

    def with_limit(self, limit_bytes: int | None) -> "PipelineSetup":
        """The same with another memory limit, if one is given."""
        return self if limit_bytes is None else replace(self, limit_bytes=limit_bytes)


def choose_schedule(
    name: str | None, *, stages: int | None, actors: int | None, measured: "Timeline | None" = None
) -> Schedule:
    """Makes the schedule: by name, from a CSV file, or in the order of a measured trace.

    Raises:
        UsageError: if there is none of this name, or its numbers are missing.
    """
    if name is None and measured is not None:
        return measured_order(measured)
    if name is not None and name.endswith(".csv"):
        return Custom.from_csv(Path(name))
    if stages is None and actors is None:
        raise UsageError("a pipeline needs --stages or --actors, but got neither. Add, say, --stages 8.")
    if name is None:
        name = "interleaved" if None not in (stages, actors) and stages != actors else "1f1b"
    found = match_name(name, SCHEDULES)
    if found not in SCHEDULES:
        near = did_you_mean(map(repr, difflib.get_close_matches(found, SCHEDULES)))
        raise UsageError(
            f"no schedule is called {name!r}. Use one of: {', '.join(SCHEDULES)}; or a file that ends in .csv.{near}"
        )
    if stages is None:
        stages = 2 * (actors or 1) if found in ("zero-bubble-v", "dual-pipe-v") else actors
    return make_schedule(found, num_stages=stages or 1, num_actors=actors)


def measured_order(measured: "Timeline") -> Custom:
    """Returns the order in which the actors of a trace ran the tasks of its loop."""
    from jaxquard.ir.timeline import Track
    from jaxquard.report.timelines.loop_tasks import split_fused, tasks_of

    rows: list[list[str]] = [[] for _ in range(measured.num_actors)]
    for span in sorted(split_fused(measured).spans, key=lambda span: (span.start_s, span.end_s)):
        if span.track is Track.COMPUTE:
            rows[span.actor] += map(str, tasks_of(span))
    if not any(rows):
        raise UsageError(
            "the trace of --measured has no task of a pipeline. Give one of a pipelined step, as jaxquard demo writes."
        )
    return Custom([",".join(row) for row in rows])


def check_num_tasks(schedule: Schedule, num_microbatches: int) -> None:
    """Refuses more tasks than anyone waits for."""
    if schedule.num_stages * num_microbatches > _MOST_TASKS:
        raise UsageError(
            f"--stages {schedule.num_stages} times --microbatches {num_microbatches} are more tasks than can be "
            f"simulated here. Give at most {_MOST_TASKS}."
        )


def setup_model(
    schedule: Schedule,
    model: str,
    cluster: "Cluster",
    *,
    system: str,
    seq: int | None,
    tensor: int | None,
    data: int | None,
    microbatches: int | None,
    microbatch_size: int,
    global_batch: int | None,
    recompute: str,
) -> PipelineSetup:
    """Prices the stages of a model on a cluster."""
    from jaxquard.pricing import Parallelism, find_system, stage_costs
    from jaxquard.pricing.model.price_step import RESERVED_SHARE
    from jaxquard.simulate import link_actors

    transformer = _find_transformer(model, seq)
    actors = schedule.num_actors
    tensor = tensor or _usual_tensor(transformer, cluster, actors)
    data = data or max(1, cluster.num_chips // (actors * tensor))
    _check_chips(cluster, actors=actors, tensor=tensor, data=data)
    num_microbatches = _num_microbatches(
        schedule, microbatches, data=data, microbatch_size=microbatch_size, global_batch=global_batch
    )
    profile = find_system(system)
    parallelism = Parallelism(
        tensor=tensor,
        sequence=profile.sequence and tensor > 1,
        pipeline=actors,
        num_chunks=schedule.num_stages // actors,
        data=data,
        zero=min(profile.zero, 2),
        microbatch=microbatch_size,
        global_batch=num_microbatches * microbatch_size * data,
        recompute=recompute,
        schedule="interleaved" if schedule.num_stages > actors else "1f1b",
    )
    chips = parallelism.num_devices
    unused = cluster.num_chips - chips
    return PipelineSetup(
        title=f"{model} on {count(chips, 'chip')} of {cluster.name}: {_words(schedule, num_microbatches)} of "
        f"{microbatch_size}, tensor {tensor}, data {data}",
        schedule=schedule,
        num_microbatches=num_microbatches,
        costs=stage_costs(transformer, parallelism, cluster, profile),
        links=link_actors(cluster, num_actors=actors, chips_apart=tensor * data),
        limit_bytes=int(cluster.memory.size_bytes * (1 - RESERVED_SHARE)),
        run=ModelRun(transformer=transformer, parallelism=parallelism, cluster=cluster, system=profile.name),
        notes=(
            *([f"{unused} of {cluster.num_chips} chips are not used."] if unused else []),
            f"Prices are modelled, with the constants of {profile.name}; nothing was measured.",
        ),
    )


def setup_times(
    schedule: Schedule,
    *,
    microbatches: int | None,
    forward_ms: float,
    input_gradient_ms: float | None,
    weight_gradient_ms: float | None,
    transfer_ms: float,
    activation_bytes: int,
) -> PipelineSetup:
    """Takes equal stages with given times."""
    from jaxquard.simulate import ActorLink, StageCost

    num_microbatches = _num_microbatches(schedule, microbatches)
    cost = StageCost(
        forward_s=forward_ms / 1e3,
        input_gradient_s=(forward_ms if input_gradient_ms is None else input_gradient_ms) / 1e3,
        weight_gradient_s=(forward_ms if weight_gradient_ms is None else weight_gradient_ms) / 1e3,
        activation_bytes=activation_bytes,
    )
    return PipelineSetup(
        title=_words(schedule, num_microbatches),
        schedule=schedule,
        num_microbatches=num_microbatches,
        costs=(cost,) * schedule.num_stages,
        links=dict.fromkeys(_pairs(schedule), ActorLink(latency_s=transfer_ms / 1e3)),
    )


def setup_measured(
    schedule: Schedule, measured: "Timeline", *, microbatches: int | None, transfer_ms: float | None
) -> PipelineSetup:
    """Takes the median times of a trace, stage by stage; of transfers too unless their time is given."""
    from jaxquard.report.timelines.measured_costs import measured_costs, measured_transfer_s
    from jaxquard.simulate import ActorLink

    num_microbatches = _num_microbatches(schedule, microbatches)
    transfer_s = measured_transfer_s(measured) if transfer_ms is None else transfer_ms / 1e3
    return PipelineSetup(
        title=f"the median times of the trace: {_words(schedule, num_microbatches)}",
        schedule=schedule,
        num_microbatches=num_microbatches,
        costs=measured_costs(measured, schedule.num_stages),
        links=dict.fromkeys(_pairs(schedule), ActorLink(latency_s=transfer_s)),
    )


def _pairs(schedule: Schedule) -> set[tuple[int, int]]:
    """The pairs of actors between which values go: those of neighbouring stages, both ways."""
    actors = [schedule.actor_of(stage) for stage in range(schedule.num_stages)]
    forwards = {(source, target) for source, target in pairwise(actors) if source != target}
    return forwards | {(target, source) for source, target in forwards}


def _words(schedule: Schedule, num_microbatches: int) -> str:
    stages, actors = count(schedule.num_stages, "stage"), count(schedule.num_actors, "actor")
    return f"{schedule.name}, {stages} on {actors}, {count(num_microbatches, 'microbatch')}"


def _find_transformer(model: str, seq: int | None) -> "Transformer":
    from jaxquard.pricing import find_transformer

    usual = 4096 if "llama" in model.lower() else 2048
    try:
        return find_transformer(model.replace(":", "-"), seq=seq or usual)
    except StepPriceError:
        found = _from_zoo(model.replace(":", "-"), seq)
        if found is None:
            raise
        return found


def _from_zoo(name: str, seq: int | None) -> "Transformer | None":
    """The sizes of a model of the package that is not published under this name; None if it is no decoder."""
    from jaxquard.models import zoo
    from jaxquard.pricing import Transformer

    names = [known for known in zoo.model_names() if known.startswith(("gpt", "llama"))]
    if match_name(name, names) not in names:
        return None
    config = zoo.find_model(match_name(name, names)).config
    is_llama = hasattr(config, "num_kv_heads")
    return Transformer(
        num_layers=config.num_layers,
        hidden=config.model_dim,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads if is_llama else config.num_heads,
        vocab=config.vocab_size,
        seq=seq or config.sequence_length,
        ffn=config.mlp_dim,
        is_gated=is_llama,
        is_tied=not is_llama and config.tied_embeddings,
        has_learned_positions=not is_llama,
        has_biases=not is_llama,
    )


def _usual_tensor(transformer: "Transformer", cluster: "Cluster", actors: int) -> int:
    """The largest part of a host, up to 8 chips, that divides an actor's chips and the heads."""
    from jaxquard.cluster import levels_of

    available = max(1, cluster.num_chips // actors)
    most = min(_USUAL_TENSOR, levels_of(cluster)[0].size, available)
    fits = [size for size in range(1, most + 1) if available % size == 0 and transformer.num_heads % size == 0]
    return max(fits, default=1)


def _check_chips(cluster: "Cluster", *, actors: int, tensor: int, data: int) -> None:
    needed = actors * tensor * data
    if needed > cluster.num_chips:
        raise UsageError(
            f"--actors {actors} times --tensor {tensor} times --data {data} are {needed} chips, but {cluster.name} has "
            f"{cluster.num_chips}. Use fewer, or a larger cluster."
        )


def _num_microbatches(
    schedule: Schedule,
    microbatches: int | None,
    *,
    data: int = 1,
    microbatch_size: int = 1,
    global_batch: int | None = None,
) -> int:
    """The number of microbatches: given, or from the global batch, or four for each actor."""
    if isinstance(schedule, Custom):
        if microbatches not in (None, schedule.num_microbatches):
            raise UsageError(
                f"the order has {schedule.num_microbatches} microbatches, but --microbatches {microbatches} was given. "
                "Leave it out."
            )
        return schedule.num_microbatches
    if global_batch is None:
        return microbatches or 4 * schedule.num_actors
    found, rest = divmod(global_batch, data * microbatch_size)
    if rest or not found:
        raise UsageError(
            f"--global-batch {global_batch} does not divide into microbatches of {microbatch_size} on "
            f"{count(data, 'replica')}. Use a multiple of {data * microbatch_size}."
        )
    if microbatches not in (None, found):
        raise UsageError(
            f"--global-batch {global_batch} makes {found} microbatches of {microbatch_size} on "
            f"{count(data, 'replica')}, but --microbatches {microbatches} was given. Leave one of them out."
        )
    return found
