"""The price of each stage of a pipeline on one microbatch, with its collectives and its memory.

Layers are spread over the stages, the ends with fewer where they do not divide (`split_layers`); the first has the
embedding besides, the last the output layer and the loss. A strategy without a pipeline is one stage. What a framework
hides of a collective follows from what runs beside it:

    exposed = what is longer than the compute that hides it, and of the rest the share that slows the compute
"""

import functools
import math
from dataclasses import dataclass

from jaxquard.cluster import ChipSpeeds
from jaxquard.cluster.cluster import Cluster
from jaxquard.pricing.model.check_parallelism import check_parallelism
from jaxquard.pricing.model.group_times import GroupTimes
from jaxquard.pricing.model.layer_price import LayerPrice, price_layer
from jaxquard.pricing.model.memory import StageMemory, head_activation_bytes, layer_activation_bytes, stage_memory
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.system import SystemProfile
from jaxquard.pricing.model.transformer import Transformer

_ITEM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrice:
    """Seconds of one stage on one microbatch, and its memory.

    Attributes:
        forward_s: with the exposed part of its collectives.
        input_gradient_s: the same, and with what it recomputes.
        weight_gradient_s: of the gradients of the weights.
        communication_s: the exposed part of collectives, forward and backward, that the above contain.
        recompute_s: the forward compute that runs again, contained in `input_gradient_s`.

    Example:
        >>> gpt = jq.pricing.Transformer(num_layers=24, hidden=2048, num_heads=16, vocab=51200, seq=2048)
        >>> prices = jq.pricing.stage_prices(
        ...     gpt, jq.pricing.Parallelism(pipeline=4), jq.cluster.load_cluster("a100"), jq.pricing.find_system("NeMo")
        ... )
        >>> first = prices.stages[0]
        >>> 1.5 < first.backward_s / first.forward_s < 2.5
        True
    """

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    communication_s: float
    recompute_s: float
    memory: StageMemory

    @property
    def backward_s(self) -> float:
        """Both gradients and what is recomputed for them."""
        return self.input_gradient_s + self.weight_gradient_s

    @property
    def time_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrices:
    """The prices of all stages of a pipeline.

    Attributes:
        stages: in the order of the model; stage s stands on actor s % pipeline.
        transfer_bytes: of the message from one stage to the next on one device; the gradient's message is as large.
        transfer_s: of that message.

    Example:
        >>> gpt = jq.pricing.Transformer(num_layers=24, hidden=2048, num_heads=16, vocab=51200, seq=2048)
        >>> prices = jq.pricing.stage_prices(
        ...     gpt, jq.pricing.Parallelism(pipeline=4), jq.cluster.load_cluster("a100"), jq.pricing.find_system("NeMo")
        ... )
        >>> len(prices.stages), f"{prices.transfer_bytes / 2**20:.0f} MiB"
        (4, '8 MiB')
    """

    stages: tuple[StagePrice, ...]
    transfer_bytes: float
    transfer_s: float

    def actor_stages(self, actor: int, num_actors: int) -> tuple[StagePrice, ...]:
        """Returns the stages of an actor, by the loop placement."""
        return self.stages[actor::num_actors]


def stage_prices(
    transformer: Transformer,
    parallelism: Parallelism,
    cluster: Cluster,
    system: SystemProfile,
    chip: ChipSpeeds | None = None,
) -> StagePrices:
    """Prices the stages of a training step.

    Args:
        chip: instead of the cluster's own.

    Raises:
        StepPriceError: if the strategy does not fit the transformer.

    Example:
        >>> llama = jq.pricing.find_transformer("Llama2-70B", seq=4096)
        >>> parallelism = jq.pricing.Parallelism(tensor=8, pipeline=4, data=2, microbatch=4, global_batch=128)
        >>> cluster = jq.cluster.load_cluster("h100-8x8")
        >>> prices = jq.pricing.stage_prices(llama, parallelism, cluster, jq.pricing.find_system("JaxPP"))
        >>> len(prices.stages)
        4
    """
    check_parallelism(transformer, parallelism)
    times = GroupTimes(cluster, parallelism, chip)
    par = parallelism
    counts = split_layers(transformer.num_layers, par.num_stages)
    bodies = {count: _price_body(transformer, par, system, times, count) for count in set(counts)}
    head_s = _head_s(transformer, par, system, times)
    stages = [bodies[count] for count in counts]
    if par.num_stages == 1:
        stages[0] = _with_ends(stages[0], transformer, par, system, times, head_s, is_first=True, is_last=True)
    else:
        stages[0] = _with_ends(stages[0], transformer, par, system, times, head_s, is_first=True, is_last=False)
        stages[-1] = _with_ends(stages[-1], transformer, par, system, times, head_s, is_first=False, is_last=True)
    transfer_bytes = par.microbatch * transformer.seq / par.context * transformer.hidden * _ITEM / par.tensor
    return StagePrices(stages=tuple(stages), transfer_bytes=transfer_bytes, transfer_s=times.send_s(transfer_bytes))


def split_layers(num_layers: int, num_stages: int) -> tuple[float, ...]:
    """Returns the layers of each stage.

    Where layers do not divide, the ends have fewer, since they have the embedding and the output layer besides, and the
    last one fewest: 126 layers on 16 stages are 8 each and 7 on both ends, as Llama 3 is trained; 61 layers are 4 each,
    3 on the first and 2 on the last. Where even ends of one layer do not make up for it, layers are fractions.

    Example:
        >>> jq.pricing.split_layers(126, 4), jq.pricing.split_layers(61, 4), jq.pricing.split_layers(5, 4)
        ((31.0, 32.0, 32.0, 31.0), (15.0, 16.0, 16.0, 14.0), (1.25, 1.25, 1.25, 1.25))
    """
    return _cached_split(num_layers, num_stages)


@functools.lru_cache(maxsize=10_000)
def _cached_split(num_layers: int, num_stages: int) -> tuple[float, ...]:
    even = num_layers / num_stages
    inner = math.ceil(even)
    left = num_layers - (num_stages - 2) * inner
    if num_stages == 1 or inner == even or left < 2:
        return (even,) * num_stages
    return (float(math.ceil(left / 2)), *[float(inner)] * (num_stages - 2), float(left // 2))


def has_whole_layers(num_layers: int, num_stages: int) -> bool:
    """Returns true if stages have whole layers."""
    return split_layers(num_layers, num_stages)[0].is_integer()


def _price_body(
    transformer: Transformer, par: Parallelism, system: SystemProfile, times: GroupTimes, layers: float
) -> StagePrice:
    """The price of a stage's layers alone."""
    moe_share = transformer.num_moe_layers / transformer.num_layers
    parts = [(False, (1 - moe_share) * layers), (True, moe_share * layers)]
    forward = inputs = weights = communication = recompute = 0.0
    parameters = experts = largest = activations = 0.0
    for is_moe, count in parts:
        if not count:
            continue
        layer = price_layer(transformer, par, system, times, is_moe=is_moe)
        own, routed = _layer_parameters(transformer, par, is_moe=is_moe)
        forward_comm, backward_comm = _exposed_s(layer, par, system, times, own, routed)
        forward += count * (layer.forward_s + forward_comm)
        inputs += count * (layer.input_gradient_s + layer.recompute_s + backward_comm)
        weights += count * (layer.weight_gradient_s + _accumulation_s(par, system, times, own + routed))
        communication += count * (forward_comm + backward_comm)
        recompute += count * layer.recompute_s
        parameters += count * own
        experts += count * routed
        largest = max(largest, own + routed)
        activations += count * layer_activation_bytes(transformer, par, system, is_moe=is_moe)
    memory = stage_memory(
        par,
        system,
        parameters=parameters,
        expert_parameters=experts,
        layer_parameters=largest,
        activation_bytes=activations,
    )
    return StagePrice(
        forward_s=forward,
        input_gradient_s=inputs,
        weight_gradient_s=weights,
        communication_s=communication,
        recompute_s=recompute,
        memory=memory,
    )


def _accumulation_s(par: Parallelism, system: SystemProfile, times: GroupTimes, parameters: float) -> float:
    """Returns the seconds in which one microbatch's gradients of a layer are added to those of the others."""
    if par.num_microbatches == 1 or par.zero == 3:
        return 0.0
    return times.kernels.memory_pass(system.accumulation_bytes * parameters, num_kernels=0)


def _layer_parameters(transformer: Transformer, par: Parallelism, *, is_moe: bool) -> tuple[float, float]:
    """Returns the parameters of a layer on a device: those of all replicas, and those of experts."""
    own = transformer.attention_parameters / par.tensor + transformer.norm_parameters
    if not is_moe:
        return own + transformer.dense_mlp_parameters / par.tensor, 0.0
    sharded = par.expert_tensor or par.tensor
    experts = transformer.num_experts * transformer.expert_parameters / par.expert / sharded
    return own + transformer.shared_parameters / par.tensor, experts


def hide(communication_s: float, window_s: float, *, share: float, contention: float) -> float:
    """Returns the exposed part of a collective beside so much compute.

    Args:
        share: of the collective that can hide at all.
        contention: of the hidden part, what the compute beside it loses.

    Example:
        >>> jq.pricing.hide(3.0, 2.0, share=1.0, contention=0.1)
        1.2
    """
    hidden = min(communication_s * share, window_s)
    return communication_s - hidden + contention * hidden


def _exposed_s(
    layer: LayerPrice, par: Parallelism, system: SystemProfile, times: GroupTimes, own: float, routed: float
) -> tuple[float, float]:
    """Returns the exposed seconds of a layer's collectives, forward and backward."""
    contention = times.chip.contention

    def exposed(communication_s: float, window_s: float, share: float) -> float:
        return hide(communication_s, window_s, share=share, contention=contention)

    tensor_s = layer.forward_tensor_s
    backward_s = layer.input_gradient_s + layer.weight_gradient_s + layer.recompute_s
    forward = exposed(tensor_s, layer.product_s, system.tensor_overlap)
    backward = exposed(tensor_s, 2 * layer.product_s, system.tensor_overlap)
    if par.recompute == "full":
        backward += forward * par.recompute_share
    forward += exposed(layer.expert_s, layer.forward_s, system.expert_overlap)
    backward += exposed(layer.expert_s, backward_s, system.expert_overlap)
    if par.recompute == "full":
        backward += exposed(layer.expert_s, layer.forward_s, system.expert_overlap) * par.recompute_share
    forward += exposed(layer.context_s, layer.attention_s, 1.0)
    backward += exposed(2 * layer.context_s, 2 * layer.attention_s, 1.0)
    if par.zero == 3:
        gather_s, backward_fsdp_s = _fsdp_s(par, system, times, own, routed)
        forward += exposed(gather_s, layer.forward_s, system.fsdp_overlap)
        backward += exposed(backward_fsdp_s, backward_s, system.fsdp_overlap)
    return forward, backward


def _fsdp_s(
    par: Parallelism, system: SystemProfile, times: GroupTimes, own: float, routed: float
) -> tuple[float, float]:
    """Returns the seconds of FSDP for a layer and one microbatch: forward, to gather its parameters; backward.

    Backward it gathers them again where the framework does not keep them, and sums and scatters their gradients.
    """
    local = routed * min(1.0, par.expert / max(1, par.num_shards))
    size = own + routed - local
    gather_s = times.shard_gather_s(_ITEM * size)
    scatter_s = times.shard_gather_s(system.gradient_bytes * size)
    if times.replicas:
        scatter_s += times.replica_sum_s(system.gradient_bytes * size / par.num_shards)
    # A pipeline keeps what it has gathered for all its microbatches, and sums gradients at the end.
    count = 1 if system.gathers_each_microbatch and par.pipeline == 1 else par.num_microbatches
    again_s = 0.0 if system.keeps_parameters else gather_s
    return gather_s / system.fsdp_bandwidth / count, (again_s + scatter_s) / system.fsdp_bandwidth / count


def _head_s(
    transformer: Transformer, par: Parallelism, system: SystemProfile, times: GroupTimes
) -> tuple[float, float, float]:
    """Returns the seconds of the output layer and the loss: forward, input gradient, weight gradient."""
    kernels = times.kernels
    tokens = par.microbatch * transformer.seq / par.context
    columns, hidden = transformer.vocab / par.tensor, transformer.hidden
    # The output layer stays in 16 bits where the other products have 8.
    dtype = "bf16" if par.dtype in ("fp8", "fp4") else par.dtype
    share = system.matmul_share
    loss_s = kernels.memory_pass(tokens * columns * system.loss_bytes / 2, num_kernels=4)
    forward = kernels.product(m=tokens, k=hidden, n=columns, dtype=dtype) / share + loss_s
    inputs = kernels.product(m=tokens, k=columns, n=hidden, dtype=dtype) / share + loss_s
    weights = kernels.product(m=hidden, k=tokens, n=columns, dtype=dtype) / share
    if par.tensor > 1:
        inputs += times.tensor_sum_s(tokens * hidden * _ITEM) * (1 - system.tensor_overlap)
    return forward, inputs, weights


def _with_ends(
    body: StagePrice,
    transformer: Transformer,
    par: Parallelism,
    system: SystemProfile,
    times: GroupTimes,
    head_s: tuple[float, float, float],
    *,
    is_first: bool,
    is_last: bool,
) -> StagePrice:
    """Adds the embedding, or the output layer and the loss, to a stage."""
    embedding = transformer.embedding_parameters / par.tensor
    output = transformer.hidden * transformer.vocab / par.tensor
    # A tied embedding is one matrix where both ends are one stage, and a copy on each where they are two.
    added = embedding if is_first else 0.0
    added += output if is_last and not (is_first and transformer.is_tied) else 0.0
    activations = body.memory.activation_bytes
    forward = inputs = weights = communication = 0.0
    if is_first:
        tokens = par.microbatch * transformer.seq / par.context
        forward += times.kernels.memory_pass(2 * _ITEM * tokens * transformer.hidden, num_kernels=2)
        weights += times.kernels.memory_pass(3 * _ITEM * tokens * transformer.hidden, num_kernels=2)
        activations += tokens * transformer.hidden / par.tensor if transformer.has_biases else 0.0
    if is_last:
        forward, inputs, weights = forward + head_s[0], head_s[1], weights + head_s[2]
        activations += head_activation_bytes(transformer, par)
    if par.zero == 3:
        gather_s, backward_fsdp_s = _fsdp_s(par, system, times, added, 0.0)
        exposed = hide(gather_s, forward, share=system.fsdp_overlap, contention=times.chip.contention)
        exposed_back = hide(
            backward_fsdp_s, inputs + weights, share=system.fsdp_overlap, contention=times.chip.contention
        )
        forward, inputs, communication = forward + exposed, inputs + exposed_back, exposed + exposed_back
    state = body.memory
    memory = stage_memory(
        par,
        system,
        parameters=state.parameters - state.expert_parameters + added,
        expert_parameters=state.expert_parameters,
        layer_parameters=max(added, state.weight_bytes / 4 if par.zero == 3 else 0.0),
        activation_bytes=activations,
        end_bytes=activations - body.memory.activation_bytes,
    )
    return StagePrice(
        forward_s=body.forward_s + forward,
        input_gradient_s=body.input_gradient_s + inputs,
        weight_gradient_s=body.weight_gradient_s + weights,
        communication_s=body.communication_s + communication,
        recompute_s=body.recompute_s,
        memory=memory,
    )
