"""The usual strategies: pure data parallelism, FSDP, Megatron's rules, and the best with one axis alone.

Each fixes its degrees; microbatch and recomputation are the fastest that fit: whoever writes such a plan tunes them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from jaxquard.cluster.levels import levels_of
from jaxquard.gemm.autotune.slices import divisors
from jaxquard.planner.named.choices import mesh_text
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.search import PricedStrategy
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.stage_prices import has_whole_layers

_RECOMPUTES = ("selective", "full")
# A host of 8 is the widest tensor group that is used where chips are joined by more than a switch.
_WIDEST_TENSOR = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualStrategy:
    """A strategy by its name.

    Attributes:
        name: such as "fsdp".
        priced: its price; None if it cannot run.
        reason: why it cannot.
    """

    name: str
    priced: PricedStrategy | None = None
    reason: str = ""


def usual_strategies(step: ModelStep) -> tuple[UsualStrategy, ...]:
    """Returns the usual strategies of a step."""
    whole = _base(step, data=step.num_devices)
    return (
        _tuned(step, "data parallel", [whole], replicas=step.num_devices),
        _tuned(step, "fsdp", [replace(whole, zero=3)] if whole else [], replicas=step.num_devices),
        _megatron(step),
        _single_axis(step),
    )


def fastest_that_fits(step: ModelStep, strategies: Iterable[Parallelism]) -> PricedStrategy | None:
    """Returns the fastest strategy that fits; the one with the smallest excess if none does; None if there is none."""
    priced = [PricedStrategy(parallelism=item, price=step.price(item)) for item in strategies]
    return min(priced, key=lambda item: (max(0.0, item.price.peak_bytes - step.limit_bytes), item.order), default=None)


def _base(step: ModelStep, *, tensor: int = 1, pipeline: int = 1, data: int = 1) -> Parallelism | None:
    """Returns a strategy of degrees on all chips; None if they do not fit the model or the batch."""
    par = Parallelism(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        sequence=tensor > 1,
        global_batch=step.global_batch,
        schedule="1f1b" if pipeline > 1 else "none",
        dtype=step.dtype,
    )
    model = step.transformer
    fits = model.num_heads % par.tensor == 0 and par.pipeline <= model.num_layers
    return par if fits and step.global_batch % par.data == 0 else None


def _tuned(step: ModelStep, name: str, bases: Iterable[Parallelism | None], *, replicas: int) -> UsualStrategy:
    strategies = [item for base in bases if base for item in _tunings(step, base)]
    priced = fastest_that_fits(step, strategies)
    reason = "" if priced else f"a batch of {step.global_batch} does not divide among {replicas} replicas"
    return UsualStrategy(name=name, priced=priced, reason=reason)


def _tunings(step: ModelStep, base: Parallelism) -> Iterator[Parallelism]:
    for microbatch in divisors(step.global_batch // base.data):
        for recompute in _RECOMPUTES:
            yield replace(base, microbatch=microbatch, recompute=recompute)


def _megatron(step: ModelStep) -> UsualStrategy:
    """Tensor parallelism up to a host, then a pipeline until it fits, replicas for the rest (arXiv 2104.04473).

    Sequence parallelism, a sharded optimizer, selective recomputation, full where that does not fit, and an interleaved
    schedule where layers and microbatches divide (arXiv 2205.05198).
    """
    host = min(levels_of(step.cluster)[0].size, _WIDEST_TENSOR)
    tensors = [size for size in divisors(step.num_devices) if size <= host and step.transformer.num_heads % size == 0]
    degrees = [(tensor, 1) for tensor in tensors]
    degrees += [(tensors[-1], pipeline) for pipeline in divisors(step.num_devices // tensors[-1])[1:]]
    smallest: PricedStrategy | None = None
    for recompute in _RECOMPUTES:
        for tensor, pipeline in degrees:
            strategies = _megatron_strategies(step, tensor, pipeline, recompute)
            priced = fastest_that_fits(step, strategies)
            if priced is None:
                continue
            if priced.price.peak_bytes <= step.limit_bytes:
                return UsualStrategy(name=f"megatron: {mesh_text(priced.parallelism)}", priced=priced)
            if smallest is None or priced.price.peak_bytes < smallest.price.peak_bytes:
                smallest = priced
    name = "megatron" if smallest is None else f"megatron: {mesh_text(smallest.parallelism)}"
    return UsualStrategy(name=name, priced=smallest, reason="no number of replicas divides the batch")


def _megatron_strategies(step: ModelStep, tensor: int, pipeline: int, recompute: str) -> Iterator[Parallelism]:
    data = step.num_devices // tensor // pipeline
    base = _base(step, tensor=tensor, pipeline=pipeline, data=data)
    if base is None or not _whole_layers(step, pipeline):
        return
    expert = _expert_degree(step, data)
    base = replace(
        base, recompute=recompute, zero=1 if data > 1 else 0, expert=expert, expert_tensor=1 if expert > 1 else 0
    )
    for microbatch in (size for size in (1, 2, 4, 8) if step.global_batch // data % size == 0):
        sized = replace(base, microbatch=microbatch)
        chunks = [1]
        if pipeline > 1 and sized.num_microbatches % pipeline == 0:
            most = step.transformer.num_layers // pipeline
            chunks = [size for size in range(1, most + 1) if _whole_layers(step, pipeline * size)]
        yield from (
            replace(sized, num_chunks=size, schedule="interleaved" if size > 1 else sized.schedule) for size in chunks
        )


def _expert_degree(step: ModelStep, data: int) -> int:
    """Experts are spread over the replicas, as far as these suffice."""
    experts = step.transformer.num_experts
    return max(size for size in divisors(experts) if data % size == 0) if experts else 1


def _whole_layers(step: ModelStep, num_stages: int) -> bool:
    return has_whole_layers(step.transformer.num_layers, num_stages)


def _single_axis(step: ModelStep) -> UsualStrategy:
    """The fastest strategy on one axis alone: tensor, pipeline, replicas, or replicas that share their state."""
    count = step.num_devices
    data = _base(step, data=count)
    bases = {
        "tensor": _base(step, tensor=count),
        "pipeline": _base(step, pipeline=count) if _whole_layers(step, count) else None,
        "data": data,
        "fsdp": replace(data, zero=3) if data else None,
    }
    tuned = {name: _tuned(step, name, [base], replicas=count) for name, base in bases.items() if base}
    priced = fastest_that_fits(step, [item.priced.parallelism for item in tuned.values() if item.priced])
    axis = next((name for name, item in tuned.items() if item.priced == priced), "") if priced else ""
    return UsualStrategy(
        name="best single axis" + (f": {axis} {count}" if axis else ""),
        priced=priced,
        reason=f"no axis alone has {count} chips: {step.transformer.num_heads} heads, {step.transformer.num_layers} "
        f"layers, a batch of {step.global_batch}",
    )
