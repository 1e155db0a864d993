"""A strategy in the words of a plan: stages with their layers, shardings of each layer, memory, and settings."""

import itertools
import math

from jaxquard.planner.named.choices import actor_axes
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.record.plan import MemoryTerms, StagePlan
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.price_step import StepMemory, microbatches_kept
from jaxquard.pricing.model.stage_prices import StagePrice, has_whole_layers, split_layers, stage_prices

# The choice of all layers on an axis: the dims of a product are rows (M), columns (N) and contracted (K). Batch and
# sequence are rows. Of each pair of products, the first (qkv, up) has its columns sharded, the second (out, down) is
# contracted.
AXIS_CHOICES = {"data": "rows", "context": "rows", "tensor": "columns, contracted"}


def describe_stages(step: ModelStep, parallelism: Parallelism, provenance: str) -> tuple[StagePlan, ...]:
    """Returns the stages of a strategy, in the order of the model."""
    par = parallelism
    prices = stage_prices(step.transformer, par, step.cluster, step.system, step.chip).stages
    growth = 1 + step.system.jitter * math.log2(max(1, par.num_devices / 8))
    choice = tuple(AXIS_CHOICES[axis] for axis in actor_axes(par))
    stages, start = [], 0
    for stage, (price, count) in enumerate(zip(prices, _layers_of_stages(step, par), strict=True)):
        actor, stop = stage % par.pipeline, start + count
        stages.append(
            StagePlan(
                name=_stage_name(start, stop, is_first=stage == 0, is_last=stage == par.num_stages - 1),
                actor=actor,
                blocks=(start, stop),
                strategies=(choice,) * count,
                forward_s=growth * price.forward_s,
                backward_s=growth * price.backward_s,
                communication_s=growth * price.communication_s,
                memory=_stage_memory(price, par, actor),
                provenance=provenance,
            )
        )
        start = stop
    return tuple(stages)


def memory_terms(memory: StepMemory) -> MemoryTerms:
    """Returns the bytes of the fullest device."""
    return MemoryTerms(
        weight_bytes=round(memory.weight_bytes),
        gradient_bytes=round(memory.gradient_bytes),
        optimizer_bytes=round(memory.optimizer_bytes),
        activation_bytes=round(memory.activation_bytes),
    )


def describe_settings(parallelism: Parallelism) -> dict[str, str]:
    """Returns what else a strategy has."""
    par = parallelism
    settings = {"dtype": par.dtype, "microbatch of a replica": str(par.microbatch)}
    if par.tensor > 1:
        settings["sequence parallel"] = "yes" if par.sequence else "no"
    if par.context > 1:
        settings["context parallel"] = str(par.context)
    if par.num_chunks > 1:
        settings["stages an actor"] = str(par.num_chunks)
    if par.expert > 1:
        settings["expert parallel"] = str(par.expert)
        settings["tensor parallel in experts"] = str(par.expert_tensor or par.tensor)
    if par.shard_group and par.shard_group != par.data:
        settings["state shared by"] = f"{par.shard_group} of {par.data} replicas"
    if par.recompute == "full" and par.recompute_share < 1:
        settings["layers recomputed"] = f"{par.recompute_share:.0%}"
    return settings


def _layers_of_stages(step: ModelStep, par: Parallelism) -> list[int]:
    num_layers, num_stages = step.transformer.num_layers, par.num_stages
    if not has_whole_layers(num_layers, num_stages):
        # A published strategy may have stages of unlike lengths between the ends too.
        stops = [round(num_layers * stage / num_stages) for stage in range(num_stages + 1)]
        return [stop - start for start, stop in itertools.pairwise(stops)]
    return [int(count) for count in split_layers(num_layers, num_stages)]


def _stage_name(start: int, stop: int, *, is_first: bool, is_last: bool) -> str:
    layers = [f"layer {start}" if stop == start + 1 else f"layers {start} to {stop - 1}"] if stop > start else []
    return ", ".join([*(["embed"] if is_first else []), *layers, *(["head"] if is_last else [])])


def _stage_memory(price: StagePrice, par: Parallelism, actor: int) -> MemoryTerms:
    memory = price.memory
    kept = (memory.activation_bytes - memory.end_bytes) * microbatches_kept(par, actor)
    return MemoryTerms(
        weight_bytes=round(memory.weight_bytes),
        gradient_bytes=round(memory.gradient_bytes),
        optimizer_bytes=round(memory.optimizer_bytes),
        activation_bytes=round(kept),
        working_bytes=round(memory.end_bytes),
    )
