"""All strategies of a step: every mesh, pipeline, schedule, microbatch, recomputation and storage that its sizes allow.

Tensor groups divide the heads, context groups the sequence, stages take whole layers (`split_layers`: the ends may have
fewer), and microbatches divide the batch. What no strategy could gain by is not listed, and said in `left_out`:

- GPipe takes as long as 1F1B and keeps more activations;
- selective recomputation is the same as none where attention is fused and keeps no scores;
- stages between the ends that would not have as many whole layers each;
- state that is sharded further than the optimizer's is gathered and summed for each microbatch, so ZeRO 2 stands where
  there is one microbatch, and ZeRO 3 without a pipeline.

A wish for one of these brings it back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxquard.gemm.autotune.slices import divisors
from jaxquard.planner.named.choices import ChoiceWish
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.stage_prices import has_whole_layers

# The shares of the layers that "full" recomputes, as far as they are whole layers of an actor.
_RECOMPUTE_SHARES = (0.25, 0.5, 0.75, 1.0)
# Of a sequence that a context group shares, a device has so many tokens or more.
_MIN_TOKENS = 256
_CONTEXT = f"context groups whose devices have fewer than {_MIN_TOKENS} tokens of a sequence each"
_GPIPE = "gpipe: takes as long as 1f1b and keeps the activations of all microbatches"
_SELECTIVE = "selective recomputation: attention is fused and keeps no scores, so it is the same as none"
_SHARDED = "zero 2 with several microbatches, zero 3 in a pipeline: state would move for each microbatch"

Pipeline = tuple[int, str]
Storage = tuple[int, int]
Recomputation = tuple[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshStrategies:
    """The strategies of one mesh: all combinations of what it leaves open.

    Attributes:
        mesh: the degrees; the rest of it means nothing.
        pipelines: stages an actor, and the schedule.
        storages: for each size of a microbatch, the degrees of ZeRO and the devices that share state (0: all).
        recomputes: what is recomputed, and in which share of the layers.
    """

    mesh: Parallelism
    pipelines: tuple[Pipeline, ...]
    storages: dict[int, tuple[Storage, ...]]
    recomputes: tuple[Recomputation, ...]

    def __len__(self) -> int:
        """The number of strategies."""
        return len(self.pipelines) * len(self.recomputes) * sum(len(storages) for storages in self.storages.values())

    def strategy(
        self, pipeline: Pipeline, microbatch: int, storage: Storage, recomputation: Recomputation
    ) -> Parallelism:
        """Returns one of them."""
        return _with_choices(self.mesh, pipeline, microbatch, storage, recomputation)

    def __iter__(self) -> Iterator[Parallelism]:
        """Lists them all."""
        for microbatch, storages in self.storages.items():
            for storage in storages:
                for pipeline in self.pipelines:
                    for recomputation in self.recomputes:
                        yield self.strategy(pipeline, microbatch, storage, recomputation)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySpace:
    """The strategies of a step.

    Attributes:
        meshes: with the strategies that meet all wishes.
        left_out: what is not among them, one sentence each.
    """

    meshes: tuple[MeshStrategies, ...] = field(repr=False)
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        """The number of strategies."""
        return sum(len(mesh) for mesh in self.meshes)

    def __iter__(self) -> Iterator[Parallelism]:
        """Lists all strategies."""
        for mesh in self.meshes:
            yield from mesh

    def __contains__(self, parallelism: object) -> bool:
        """Returns true if a strategy is among them."""
        axes = ("tensor", "sequence", "context", "pipeline", "data", "expert", "expert_tensor")
        return isinstance(parallelism, Parallelism) and any(
            parallelism in set(mesh)
            for mesh in self.meshes
            if all(getattr(mesh.mesh, name) == getattr(parallelism, name) for name in axes)
        )


def list_space(step: ModelStep, wishes: Sequence[ChoiceWish] = ()) -> StrategySpace:
    """Lists all strategies that meet the wishes."""
    wished = {
        (wish.word, value) for wish in wishes if not wish.is_forbidden and wish.word != "mesh" for value in wish.values
    }
    kernels = step.group_times(Parallelism()).kernels
    extras = _Extras(
        has_gpipe=("schedule", "gpipe") in wished,
        has_selective=("recompute", "selective") in wished or kernels.is_unfused(step.system.attention),
        has_sharded=bool({("storage", "zero 2"), ("storage", "zero 3")} & wished),
    )
    mesh_words = {"tensor", "context", "data", "actors", "mesh", "sequence", "expert"}
    of_mesh = [wish for wish in wishes if wish.word in mesh_words]
    others = [wish for wish in wishes if wish.word not in mesh_words]
    meshes = (
        _mesh_strategies(step, mesh, extras, others)
        for mesh in _list_meshes(step)
        if all(wish.allows(mesh) for wish in of_mesh)
    )
    kept = ((extras.has_gpipe, _GPIPE), (extras.has_selective, _SELECTIVE), (extras.has_sharded, _SHARDED))
    return StrategySpace(
        meshes=tuple(mesh for mesh in meshes if len(mesh)),
        left_out=(*(text for is_there, text in kept if not is_there), _CONTEXT, *_split_layers_text(step)),
    )


def _split_layers_text(step: ModelStep) -> Iterator[str]:
    """Says which numbers of stages have no whole layers; nothing if all that divide the devices have."""
    num_layers = step.transformer.num_layers
    counts = [count for count in divisors(step.num_devices) if count <= num_layers]
    uneven = [str(count) for count in counts if not _has_whole_layers(step, count)]
    if uneven:
        yield (
            f"{', '.join(uneven)} stages, and others that do not split {num_layers} layers into whole ones, as many on "
            "every stage but the ends"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extras:
    """Flags of strategies that no step gains by: whether they are listed."""

    has_gpipe: bool
    has_selective: bool
    has_sharded: bool


def _list_meshes(step: ModelStep) -> Iterator[Parallelism]:
    """Lists the degrees of all meshes and pipelines."""
    model, count = step.transformer, step.num_devices
    for tensor in divisors(count):
        if model.num_heads % tensor or model.ffn % tensor:
            continue
        for context in divisors(count // tensor):
            # A causal sequence is dealt out in two parts a device, one from each end.
            if context > 1 and (model.seq % (2 * context) or model.seq < context * _MIN_TOKENS):
                continue
            for pipeline in divisors(count // tensor // context):
                data = count // tensor // context // pipeline
                if pipeline > model.num_layers or step.global_batch % data:
                    continue
                for expert, expert_tensor in _experts(step, tensor, context * data):
                    for sequence in (True, False) if tensor > 1 else (False,):
                        yield Parallelism(
                            tensor=tensor,
                            sequence=sequence,
                            context=context,
                            pipeline=pipeline,
                            data=data,
                            expert=expert,
                            expert_tensor=expert_tensor,
                            global_batch=step.global_batch,
                            dtype=step.dtype,
                        )


def _experts(step: ModelStep, tensor: int, replicas: int) -> Iterator[tuple[int, int]]:
    """Lists the groups that share experts, and those that share each expert's products."""
    yield 1, 0
    for expert in divisors(step.transformer.num_experts) if step.transformer.num_experts else ():
        for expert_tensor in sorted({1, tensor}):
            if expert > 1 and (tensor * replicas // expert_tensor) % expert == 0:
                yield expert, expert_tensor


def _mesh_strategies(
    step: ModelStep, mesh: Parallelism, extras: _Extras, wishes: Sequence[ChoiceWish]
) -> MeshStrategies:
    """Lists what a mesh leaves open, as far as the wishes allow it: each is about one part alone."""

    def allowed(word_sets: set[str], **choices: Any) -> bool:
        relevant = [wish for wish in wishes if wish.word in word_sets]
        return not relevant or all(wish.allows(replace(mesh, **choices)) for wish in relevant)

    pipelines = [
        (chunks, schedule)
        for chunks, schedule in _pipelines(step, mesh, has_gpipe=extras.has_gpipe)
        if allowed({"schedule", "stages", "chunks"}, num_chunks=chunks, schedule=schedule)
    ]
    storages = {
        microbatch: tuple(
            (zero, group)
            for zero, group in _storages(step, mesh, microbatch, has_sharded=extras.has_sharded)
            if allowed({"storage"}, zero=zero, shard_group=group)
        )
        for microbatch in divisors(step.global_batch // mesh.data)
        if allowed({"microbatches", "microbatch", "microbatch_size"}, microbatch=microbatch)
    }
    recomputes = [
        (recompute, share)
        for recompute, share in _recomputes(step, mesh, has_selective=extras.has_selective)
        if allowed({"recompute"}, recompute=recompute)
    ]
    return MeshStrategies(mesh=mesh, pipelines=tuple(pipelines), storages=storages, recomputes=tuple(recomputes))


def _with_choices(
    mesh: Parallelism, pipeline: Pipeline, microbatch: int, storage: Storage, recomputation: Recomputation
) -> Parallelism:
    return replace(
        mesh,
        num_chunks=pipeline[0],
        schedule=pipeline[1],
        microbatch=microbatch,
        zero=storage[0],
        shard_group=storage[1],
        recompute=recomputation[0],
        recompute_share=recomputation[1],
    )


def _pipelines(step: ModelStep, mesh: Parallelism, *, has_gpipe: bool) -> Iterator[Pipeline]:
    if mesh.pipeline == 1:
        yield 1, "none"
        return
    if _has_whole_layers(step, mesh.pipeline):
        yield from ((1, "1f1b"), (1, "zero-bubble"), *([(1, "gpipe")] if has_gpipe else []))
    for chunks in range(2, step.transformer.num_layers // mesh.pipeline + 1):
        if _has_whole_layers(step, mesh.pipeline * chunks):
            yield chunks, "interleaved"


def _has_whole_layers(step: ModelStep, num_stages: int) -> bool:
    return has_whole_layers(step.transformer.num_layers, num_stages)


def _storages(step: ModelStep, mesh: Parallelism, microbatch: int, *, has_sharded: bool) -> Iterator[Storage]:
    yield 0, 0
    if mesh.data * mesh.context == 1:
        return
    yield 1, 0
    if has_sharded or microbatch * mesh.data == step.global_batch:
        yield 2, 0
    if has_sharded or mesh.pipeline == 1:
        yield 3, 0
        yield from ((3, group) for group in divisors(mesh.data)[1:-1])


def _recomputes(step: ModelStep, mesh: Parallelism, *, has_selective: bool) -> Iterator[Recomputation]:
    yield "none", 1.0
    if has_selective:
        yield "selective", 1.0
    layers = step.transformer.num_layers / mesh.pipeline
    for share in _RECOMPUTE_SHARES:
        if share == 1 or (share * layers).is_integer():
            yield "full", share
