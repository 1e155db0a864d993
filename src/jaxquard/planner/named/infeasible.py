"""Refusals: a step that no strategy runs, with what stands against it."""

from collections.abc import Sequence
from dataclasses import replace

from jaxquard.errors import InfeasiblePlanError, PlanError
from jaxquard.gemm.autotune.slices import divisors
from jaxquard.planner.named.choices import CHOICES, ChoiceWish, mesh_text
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.search import PricedStrategy, StrategySearch
from jaxquard.planner.named.space import StrategySpace, list_space

_ADVICE = {
    "weights": "more chips, or a larger tensor or pipeline degree",
    "gradients": "more chips, or zero 2 or 3",
    "optimizer state": "more chips, or state that is sharded further (zero 1 to 3)",
    "activations": "smaller microbatches, shorter sequences, or recomputation",
}
_MAX_LISTED = 12


def refuse_space(step: ModelStep, wishes: Sequence[ChoiceWish]) -> PlanError:
    """Returns the error of a step that has no strategy at all."""
    if not len(list_space(step)):
        return _refuse_batch(step)
    for wish in wishes:
        others = [other for other in wishes if other is not wish]
        space = list_space(step, others)
        if not len(space):
            continue
        values = _list_values(wish.word, space)
        because = f" with {', '.join(map(str, others))}" if others else ""
        return PlanError(
            f"{wish} cannot be met{because}: {step.num_devices} chips, {step.transformer.num_layers} layers, "
            f"{step.transformer.num_heads} heads and a batch of {step.global_batch} allow {wish.word} {values}. "
            "Change the wish, or leave it out."
        )
    return PlanError(
        f"no strategy meets {', '.join(map(str, wishes))} together, and none of them alone stands against the others. "
        "Leave out two of them or more."
    )


def refuse_memory(step: ModelStep, wishes: Sequence[ChoiceWish], search: StrategySearch) -> InfeasiblePlanError:
    """Returns the error of a step that fits nowhere: the smallest memory that would do, and the term that fills it."""
    smallest = _smallest(step, search)
    parts = smallest.price.memory.parts
    largest = max(parts, key=lambda name: parts[name])
    texts = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in parts.items())
    wished = f" under {', '.join(map(str, wishes))}" if wishes else ""
    return InfeasiblePlanError(
        f"no strategy{wished} fits {step.limit_bytes / 1e9:.1f} GB a chip of {step.cluster.name}. The smallest needs "
        f"{smallest.price.peak_bytes / 1e9:.1f} GB ({mesh_text(smallest.parallelism)}, recompute "
        f"{smallest.parallelism.recompute}, zero {smallest.parallelism.zero}: {texts}), most of it in {largest}. Give "
        f"{_ADVICE[largest]}, or chips with more memory."
    )


def _smallest(step: ModelStep, search: StrategySearch) -> PricedStrategy:
    """Prices the strategies with the smallest bounds on memory, and returns the one that needs the smallest."""
    return min(search.smallest(), key=lambda item: item.price.peak_bytes)


def _refuse_batch(step: ModelStep) -> PlanError:
    count, batch = step.num_devices, step.global_batch
    replicas = [size for size in divisors(count) if batch % size == 0]
    return PlanError(
        f"a global batch of {batch} sequences cannot be divided among {count} chips: it divides into equal parts for "
        f"{_listed(replicas)} replicas, and {step.transformer.num_layers} layers, {step.transformer.num_heads} heads "
        f"and {step.transformer.seq} tokens leave no mesh with so few of them. Give a global_batch that is a multiple "
        f"of {_needed_replicas(step)}, or fewer chips."
    )


def _needed_replicas(step: ModelStep) -> int:
    """Returns the smallest number of replicas that a mesh of all chips has."""
    # A batch of as many sequences as chips divides among any number of replicas.
    return min(mesh.mesh.data for mesh in list_space(replace(step, global_batch=step.num_devices)).meshes)


def _list_values(word: str, space: StrategySpace) -> str:
    values = {str(CHOICES[word](strategy)) for strategy in space}
    return _listed(sorted(values, key=lambda text: (len(text), text)))


def _listed(values: Sequence[object]) -> str:
    texts = [str(value) for value in values]
    if len(texts) > _MAX_LISTED:
        texts = [*texts[:_MAX_LISTED], "..."]
    return ", ".join(texts) or "nothing"
