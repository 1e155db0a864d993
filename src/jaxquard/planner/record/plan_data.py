"""The fields of a plan: how a step is spread over a cluster, what it costs, and what was considered beside it."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxquard.gemm.problem import LayerPlan
from jaxquard.intraop.step.fingerprint import StepFingerprint
from jaxquard.ir.codec import stored


class Recompute(enum.Enum):
    """The activations that a backward computes again."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTerms:
    """Seconds of a step, by what they go to; their sum is the step.

    Attributes:
        compute_s: of the busiest actor's kernels, without recomputation.
        recompute_s: of activations that are computed again.
        collective_s: exposed collectives inside of stages, reshards among them.
        transfer_s: exposed transfers between stages.
        bubble_s: in which the busiest actor waits.
        gradient_s: exposed sums of gradients over replicas, and gathers of sharded state.
        optimizer_s: of the update.
        other_s: all else, such as dispatch or the jitter of many hosts.
    """

    compute_s: float = 0.0
    recompute_s: float = 0.0
    collective_s: float = 0.0
    transfer_s: float = 0.0
    bubble_s: float = 0.0
    gradient_s: float = 0.0
    optimizer_s: float = 0.0
    other_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The seconds of the step."""
        return sum(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """Bytes on a device, by what they hold.

    Attributes:
        activation_bytes: of all microbatches in flight, by the schedule.
        working_bytes: of temporary values, and of transfers.
    """

    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    working_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in self.__dataclass_fields__)

    @property
    def largest_term(self) -> str:
        """The term that holds most of it: "weights", "gradients", "optimizer", "activations" or "working"."""
        name = max(self.__dataclass_fields__, key=lambda name: getattr(self, name)).removesuffix("_bytes")
        return name if name in ("optimizer", "working") else f"{name}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage of a plan.

    Attributes:
        name: in the user's words, such as "embed, layers 0 to 11".
        actor: that runs it.
        blocks: the first of its blocks, and the one after its last, of the step's; of a model by name, of its layers.
        strategies: for each of its blocks, the choice on every axis of the actor's mesh.
        lines: of the user's code, where the first contraction of each block stands; empty for a model by name.
        parameters: for each of its blocks, the paths of the parameters that its contractions use, and small ones that
            run with it, such as "layers.3.mlp.up"; empty for a model by name.
        forward_s: of one microbatch, its collectives among them.
        backward_s: the same, recomputation among them.
        communication_s: the part of both in exposed collectives; None if the pricer does not say.
        memory: on each device of its actor, of this stage alone.
        provenance: of its prices, such as "measured on 8 x cpu, JAX 0.10.2".
    """

    name: str
    actor: int = field(metadata=stored(minimum=0))
    blocks: tuple[int, int] = field(metadata=stored(minimum=0))
    strategies: tuple[tuple[str, ...], ...] = field(repr=False)
    lines: tuple[str, ...] = field(default=(), repr=False)
    parameters: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    forward_s: float = field(metadata=stored(minimum=0))
    backward_s: float = field(metadata=stored(minimum=0))
    communication_s: float | None = None
    memory: MemoryTerms = MemoryTerms()
    provenance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBaseline:
    """A plan that people would write by hand, beside ours.

    Attributes:
        name: such as "fsdp" or "megatron tp 8 x pp 16 x dp 128".
        time_s: infinite if it does not run.
        fits: whether its memory is there.
        source: of a published configuration.
        note: why it does not run or fit, or what ours does better.
    """

    name: str
    time_s: float
    memory_bytes: int
    mfu: float | None = None
    fits: bool = True
    source: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAlternative:
    """An alternative to a part of the plan, and what it would cost.

    Attributes:
        part: what it replaces: "schedule", "microbatches", "recompute", "stages", "mesh", "storage", or a block, by its
            number, as "block 7".
        chosen: what the plan has there.
        alternative: the next best.
        added_s: to the step; below 0 for one that is faster and does not fit, or was estimated slower.
        added_bytes: on the fullest device.
        deciding: the term that decides: "compute", "collective", "bubble", "transfer", "gradient", "optimizer" or
            "memory"; "" for an alternative that costs no more.
    """

    part: str
    chosen: str
    alternative: str
    added_s: float
    added_bytes: int = 0
    deciding: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSearchLog:
    """The work of a search. What it has seen is pruned, priced or unpriced.

    Attributes:
        num_seen: configurations: stages, mesh, microbatches, schedule, recomputation and storage together.
        num_pruned: of those, left out by a bound on time or memory; of a long step also by heuristics.
        num_priced: of those, with a time of their own.
        num_unpriced: of those, whose mesh cannot shard the step, or for which no time was left.
        num_simulated: played on the cluster.
        num_measured: run on devices.
        num_programs: that a pricer was asked for.
        time_s: of the whole search.
        left_out: what a budget of time, or the user's wishes, left out, one sentence each.
    """

    num_seen: int = 0
    num_pruned: int = 0
    num_priced: int = 0
    num_unpriced: int = 0
    num_simulated: int = 0
    num_measured: int = 0
    num_programs: int = 0
    time_s: float = 0.0
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanData:
    """The fields of a `Plan`.

    Attributes:
        model: the name under which it was asked for: "llama3:405b", "mymodel:loss" or the name of the step.
        fingerprint: of the step on one microbatch; None for a model by name that was never traced.
        cluster: the name of the description of the hardware.
        num_devices: of the whole plan.
        num_actors: of the pipeline.
        axes: the axes of each actor's mesh and their sizes, the outer one first.
        schedule: its name; "none" with one stage.
        num_microbatches: of a step.
        microbatch_size: rows of the batch in one microbatch, over all devices of an actor.
        global_batch: rows of the batch of a step.
        loss_reduction: what the loss is over the rows of its batch: "mean", "sum", "weighted", or "per_microbatch" for
            the mean of the losses of microbatches, each on its own; "" where none was traced.
        recompute: the activations that the backward computes again.
        storage: the layout of state between steps: "as used", "zero 1", "zero 2" or "zero 3".
        segments: the number of blocks in each segment of the analysis, which applying the plan needs again.
        stages: in the order of the model.
        is_proven: by the estimate no other stages and shardings are faster with the plan's settings; False where a
            heuristic found them, None for a model by name, and for files that do not say.
        products: for each block that is a 2D product, by its number, the plan of each of its first contractions.
        time_s: of a step, as predicted.
        times: the same, by what it goes to.
        memory: of the fullest device.
        memory_limit_bytes: under which it was searched.
        mfu: model FLOPs over the peak of all devices; None where the cluster gives no peak.
        flops: of a step, as MFU counts them: without recomputation.
        baselines: the usual plans beside it.
        alternatives: what else was considered, for `explain`.
        log: of the search.
        provenance: of all prices, in one sentence.
        notes: remarks to the user.
        settings: of a model by name, what else its parallelism has, such as "sequence parallel" or "expert".
    """

    model: str
    fingerprint: StepFingerprint | None = field(default=None, repr=False)
    cluster: str
    num_devices: int = field(metadata=stored(minimum=1))
    num_actors: int = field(metadata=stored(minimum=1))
    axes: Mapping[str, int] = field(metadata=stored(minimum=1))
    schedule: str
    num_microbatches: int = field(metadata=stored(minimum=1))
    microbatch_size: int = field(metadata=stored(minimum=1))
    global_batch: int = field(metadata=stored(minimum=1))
    loss_reduction: str = ""
    recompute: Recompute = Recompute.NONE
    storage: str = "as used"
    segments: tuple[int, ...] = field(default=(), repr=False)
    stages: tuple[StagePlan, ...] = field(repr=False)
    is_proven: bool | None = None
    products: Mapping[str, tuple[LayerPlan, ...]] = field(default_factory=dict, repr=False)
    time_s: float
    times: TimeTerms = field(default=TimeTerms(), repr=False)
    memory: MemoryTerms = field(default=MemoryTerms(), repr=False)
    memory_limit_bytes: int | None = None
    mfu: float | None = None
    flops: float = 0.0
    baselines: tuple[PlanBaseline, ...] = field(default=(), repr=False)
    alternatives: tuple[PlanAlternative, ...] = field(default=(), repr=False)
    log: PlanSearchLog = field(default=PlanSearchLog(), repr=False)
    provenance: str = ""
    notes: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.stages)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the fullest device."""
        return self.memory.total_bytes

    @property
    def assignment(self) -> dict[int, tuple[str, ...]]:
        """The choice of every block on every axis, by its number."""
        return {
            block: names
            for stage in self.stages
            for block, names in zip(range(*stage.blocks), stage.strategies, strict=True)
        }

    @property
    def num_blocks(self) -> int:
        """The number of blocks of all stages; of a model by name, of layers."""
        return self.stages[-1].blocks[1]

    @property
    def stage_stops(self) -> tuple[int, ...]:
        """For each stage, the block after its last."""
        return tuple(stage.blocks[1] for stage in self.stages)
