"""Bounds on a strategy's memory and time that cost a microsecond: what its price cannot fall below.

Memory: the activations of the first actor, and its share of the state. Time: the layers of an actor between the ends,
each with its compute and the exposed collectives of its tensor, context and expert groups, and the bubble that follows
from them. Left out are the ends, messages, what FSDP gathers, the sums of gradients and the optimizer, all of which
only add. What strategies share is computed once: a layer's price, a mesh's state, the layers that a schedule keeps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.space import MeshStrategies, Pipeline, Recomputation, Storage
from jaxquard.pricing.model.group_times import GroupTimes
from jaxquard.pricing.model.layer_price import price_layer
from jaxquard.pricing.model.memory import OPTIMIZER_BYTES, PARAMETER_BYTES, layer_activation_bytes
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.price_step import microbatches_kept
from jaxquard.pricing.model.stage_prices import hide, split_layers

# A bound adds up the same numbers as a price in another order.
_ROUNDING = 1 - 1e-9

BoundedChoice = tuple[float, float, Pipeline, int, Storage, Recomputation]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerBound:
    """Seconds of an average layer and one microbatch on one device.

    Attributes:
        work_s: forward and backward.
        zero_bubble_s: the part of a layer in the bubble of a zero-bubble schedule, for each further actor.
    """

    work_s: float
    zero_bubble_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _PipelineBound:
    """Layers of actors, in one microbatch or in all.

    Attributes:
        busy_layers: of the actor in the middle.
        bubble_layers: of all the stages that a bubble is made of.
        kept_layers: of the first actor, times the microbatches whose activations it keeps.
        state_share: of an average actor's state, what the first one has at the minimum.
    """

    busy_layers: float
    bubble_layers: float
    kept_layers: float
    state_share: float


class StepBounds:
    """Bounds on the strategies of one step."""

    def __init__(self, step: ModelStep):
        self._step = step
        self._layers: dict[tuple, _LayerBound] = {}
        self._activations: dict[tuple, float] = {}
        self._pipelines: dict[tuple, _PipelineBound] = {}

    def choices(self, strategies: MeshStrategies) -> Iterator[BoundedChoice]:
        """Lists the bounds on memory and time of the strategies of a mesh, and the choices of each.

        The time of one that does not fit is infinite. Larger microbatches than the first that cannot fit, because of
        activations alone, keep no less, and are not listed.
        """
        mesh, limit = strategies.mesh, self._step.limit_bytes
        states = {
            storage: self._state_bytes(replace(mesh, zero=storage[0], shard_group=storage[1]))
            for storage in {storage for storages in strategies.storages.values() for storage in storages}
        }
        for microbatch, storages in sorted(strategies.storages.items()):
            count = self._step.global_batch // (mesh.data * microbatch)
            smallest = math.inf
            for recomputation in strategies.recomputes:
                layer_bytes = self._activation_bytes(mesh, microbatch, recomputation)
                for pipeline in strategies.pipelines:
                    bound = self._pipeline(mesh.pipeline, pipeline, count)
                    activations = bound.kept_layers * layer_bytes
                    smallest = min(smallest, activations)
                    time_s: float | None = None
                    for storage in storages:
                        size = _ROUNDING * (bound.state_share * states[storage] + activations)
                        if size > limit:
                            yield size, math.inf, pipeline, microbatch, storage, recomputation
                            continue
                        if time_s is None:
                            time_s = self._time_s(mesh, microbatch, recomputation, pipeline, bound)
                        yield size, time_s, pipeline, microbatch, storage, recomputation
            if smallest * _ROUNDING > limit:
                return

    def _time_s(
        self,
        mesh: Parallelism,
        microbatch: int,
        recomputation: Recomputation,
        pipeline: Pipeline,
        bound: _PipelineBound,
    ) -> float:
        layer = self._layer(mesh, microbatch, recomputation)
        unit_s = layer.zero_bubble_s if pipeline[1] == "zero-bubble" else layer.work_s
        count = self._step.global_batch // (mesh.data * microbatch)
        known_s = count * bound.busy_layers * layer.work_s + bound.bubble_layers * unit_s
        return _ROUNDING * known_s * (1 + self._step.system.jitter * math.log2(max(1, mesh.num_devices / 8)))

    def _state_bytes(self, par: Parallelism) -> float:
        """The state of an average actor: experts are on fewer replicas, all else on all."""
        model = self._step.transformer
        experts = model.num_moe_layers * model.num_experts * model.expert_parameters
        last_norm = model.hidden * (2 if model.has_biases else 1)
        own = (model.num_parameters - last_norm - experts) / par.tensor / par.pipeline
        routed = experts / par.expert / (par.expert_tensor or par.tensor) / par.pipeline
        shards = par.num_shards * (par.context if par.zero else 1)
        optimizer = own / shards + routed / (max(1, shards / par.expert) if par.zero else 1)
        gradients = optimizer if par.zero >= 2 else own + routed
        weights = 0.0 if par.zero == 3 else own + routed
        return PARAMETER_BYTES * weights + self._step.system.gradient_bytes * gradients + OPTIMIZER_BYTES * optimizer

    def _pipeline(self, actors: int, pipeline: Pipeline, count: int) -> _PipelineBound:
        key = actors, pipeline, count
        if key not in self._pipelines:
            chunks, schedule = pipeline
            par = Parallelism(pipeline=actors, num_chunks=chunks, schedule=schedule, global_batch=count)
            num_layers = self._step.transformer.num_layers
            first = _layers_of_actor(num_layers, par, actor=0)
            middle = split_layers(num_layers, par.num_stages)[par.num_stages // 2]
            self._pipelines[key] = _PipelineBound(
                busy_layers=_layers_of_actor(num_layers, par, actor=actors // 2),
                bubble_layers=(actors - 1) * middle,
                kept_layers=first * microbatches_kept(par, 0),
                state_share=min(1.0, first * actors / num_layers),
            )
        return self._pipelines[key]

    def _activation_bytes(self, mesh: Parallelism, microbatch: int, recomputation: Recomputation) -> float:
        """Returns the bytes that an average layer keeps of one microbatch."""
        key = mesh.tensor, mesh.sequence, mesh.context, microbatch, recomputation
        if key not in self._activations:
            par, step = _with_layer_choices(mesh, microbatch, recomputation), self._step
            self._activations[key] = sum(
                share * layer_activation_bytes(step.transformer, par, step.system, is_moe=is_moe)
                for is_moe, share in self._layer_shares()
            )
        return self._activations[key]

    def _layer(self, mesh: Parallelism, microbatch: int, recomputation: Recomputation) -> _LayerBound:
        """Returns the bound on an average layer, with the collectives of groups that are always the innermost."""
        degrees = (mesh.tensor, mesh.sequence, mesh.context, mesh.expert, mesh.expert_tensor)
        key = (*degrees, microbatch, recomputation)
        if key not in self._layers:
            par = _with_layer_choices(mesh, microbatch, recomputation)
            times, work, bubble = self._step.group_times(par), 0.0, 0.0
            for is_moe, share in self._layer_shares():
                work_s, zero_bubble_s = self._layer_s(par, times, is_moe=is_moe)
                work, bubble = work + share * work_s, bubble + share * zero_bubble_s
            self._layers[key] = _LayerBound(work_s=work, zero_bubble_s=max(0.0, bubble))
        return self._layers[key]

    def _layer_shares(self) -> list[tuple[bool, float]]:
        """Returns which layers there are, with experts or without, and in which share."""
        moe = self._step.transformer.num_moe_layers / self._step.transformer.num_layers
        return [(is_moe, share) for is_moe, share in ((False, 1 - moe), (True, moe)) if share]

    def _layer_s(self, par: Parallelism, times: GroupTimes, *, is_moe: bool) -> tuple[float, float]:
        step = self._step
        layer = price_layer(step.transformer, par, step.system, times, is_moe=is_moe)

        def exposed(collective_s: float, window_s: float, share: float) -> float:
            return hide(collective_s, window_s, share=share, contention=times.chip.contention)

        weights_s, system = layer.weight_gradient_s, step.system
        backward_s = layer.input_gradient_s + layer.recompute_s
        again_s = exposed(layer.forward_tensor_s, layer.product_s, system.tensor_overlap)
        again_s += exposed(layer.expert_s, layer.forward_s, system.expert_overlap)
        forward_s = layer.forward_s + again_s + exposed(layer.context_s, layer.attention_s, 1.0)
        collectives_s = exposed(layer.forward_tensor_s, 2 * layer.product_s, system.tensor_overlap)
        collectives_s += exposed(layer.expert_s, backward_s + weights_s, system.expert_overlap)
        collectives_s += exposed(2 * layer.context_s, 2 * layer.attention_s, 1.0)
        if par.recompute == "full":
            collectives_s += again_s * par.recompute_share
        backward_s += collectives_s
        return forward_s + backward_s + weights_s, forward_s + backward_s - weights_s


def _with_layer_choices(mesh: Parallelism, microbatch: int, recomputation: Recomputation) -> Parallelism:
    recompute, share = recomputation
    return replace(mesh, microbatch=microbatch, recompute=recompute, recompute_share=share)


def _layers_of_actor(num_layers: int, par: Parallelism, *, actor: int) -> float:
    """Returns the layers of all stages of an actor."""
    return sum(split_layers(num_layers, par.num_stages)[actor :: par.pipeline])
