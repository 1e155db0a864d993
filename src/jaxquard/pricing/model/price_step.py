"""The price of a whole training step: the pipeline, the sums over replicas, the optimizer, and the memory.

    step = (pipeline + exposed sums of gradients + optimizer + step_s) x (1 + jitter x log2 of the number of hosts)

Sums of gradients hide behind the backward of the last microbatch, the gathers of ZeRO-1's parameters behind the forward
of the first. The optimizer reads and writes its state once, which takes its bytes over the memory's bandwidth.
"""

import math
from dataclasses import dataclass

from jaxquard.cluster import ChipSpeeds
from jaxquard.cluster.cluster import Cluster
from jaxquard.errors import InfeasibleStepError
from jaxquard.pricing.model.check_parallelism import check_fits_cluster
from jaxquard.pricing.model.group_times import GroupTimes
from jaxquard.pricing.model.memory import PARAMETER_BYTES
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.pipeline_time import pipeline_time
from jaxquard.pricing.model.stage_prices import StagePrices, hide, stage_prices
from jaxquard.pricing.model.system import SystemProfile
from jaxquard.pricing.model.transformer import Transformer

# Adam reads a gradient, a parameter and two moments in 32 bits, and writes the last three and a parameter in 16 bits.
_OPTIMIZER_STEP_BYTES = 30
# What a device's memory holds beside the model: the context, the collectives' buffers, fragments.
RESERVED_SHARE = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes of a step on the fullest device, by what they hold.

    Example:
        >>> memory = jq.pricing.StepMemory(
        ...     weight_bytes=2e9, gradient_bytes=4e9, optimizer_bytes=12e9, activation_bytes=6e9
        ... )
        >>> f"{memory.peak_bytes / 1e9:.0f} GB"
        '24 GB'
    """

    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float

    @property
    def peak_bytes(self) -> float:
        """All of them."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes

    @property
    def parts(self) -> dict[str, float]:
        """Each of them, by name."""
        return {
            "weights": self.weight_bytes,
            "gradients": self.gradient_bytes,
            "optimizer state": self.optimizer_bytes,
            "activations": self.activation_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrice:
    """The price of a training step.

    Attributes:
        time_s: of the step.
        compute_s: of the busiest actor's kernels, recomputation among them.
        recompute_s: part of `compute_s`.
        communication_s: exposed collectives inside of layers, and exposed messages between stages.
        bubble_s: in which the pipeline waits.
        gradient_s: exposed sums over replicas.
        optimizer_s: of the optimizer's step.
        other_s: what the framework and the jitter of many hosts add.
        memory: of the fullest device.

    Example:
        >>> gpt = jq.pricing.find_transformer("GPT3-175B", seq=2048)
        >>> parallelism = jq.pricing.Parallelism(
        ...     tensor=8, pipeline=8, num_chunks=6, data=2, microbatch=4, global_batch=256, schedule="interleaved"
        ... )
        >>> cluster = jq.cluster.load_cluster("h100-8x16")
        >>> price = jq.pricing.price_step(gpt, parallelism, cluster, jq.pricing.find_system("JaxPP"))
        >>> 8 < price.time_s < 11
        True
    """

    time_s: float
    compute_s: float
    recompute_s: float
    communication_s: float
    bubble_s: float
    gradient_s: float
    optimizer_s: float
    other_s: float
    memory: StepMemory

    @property
    def peak_bytes(self) -> float:
        """Bytes of the fullest device."""
        return self.memory.peak_bytes


def price_step(
    transformer: Transformer,
    parallelism: Parallelism,
    cluster: Cluster,
    system: SystemProfile,
    *,
    chip: ChipSpeeds | None = None,
    checks_memory: bool = False,
) -> StepPrice:
    """Prices a training step in closed form.

    Args:
        chip: instead of the cluster's own.
        checks_memory: refuse a step that does not fit.

    Raises:
        StepPriceError: if the strategy does not fit the transformer or the cluster.
        InfeasibleStepError: if the step does not fit the memory, and that is checked.

    Example:
        >>> gpt = jq.pricing.Transformer(num_layers=24, hidden=2048, num_heads=16, vocab=51200, seq=2048)
        >>> parallelism = jq.pricing.Parallelism(data=8, microbatch=4, global_batch=512)
        >>> price = jq.pricing.price_step(
        ...     gpt, parallelism, jq.cluster.load_cluster("h100-8"), jq.pricing.find_system("Megatron")
        ... )
        >>> 1 < price.time_s < 8
        True
    """
    par = parallelism
    check_fits_cluster(par, cluster)
    prices = stage_prices(transformer, par, cluster, system, chip)
    times = GroupTimes(cluster, par, chip)
    pipeline = pipeline_time(prices, par, overlap=system.pipeline_overlap)
    gradient_s = _gradient_s(prices, par, system, times)
    optimizer_s = _optimizer_s(prices, par, system, times)
    busiest = max(
        (prices.actor_stages(actor, par.pipeline) for actor in {0, par.pipeline // 2, par.pipeline - 1}),
        key=lambda stages: sum(stage.time_s for stage in stages),
    )
    inside_s = par.num_microbatches * sum(stage.communication_s for stage in busiest)
    known_s = pipeline.time_s + gradient_s + optimizer_s + system.step_s
    time_s = known_s * (1 + system.jitter * math.log2(max(1, par.num_devices / 8)))
    price = StepPrice(
        time_s=time_s,
        compute_s=pipeline.busy_s - inside_s,
        recompute_s=par.num_microbatches * sum(stage.recompute_s for stage in busiest),
        communication_s=inside_s + pipeline.transfer_s,
        bubble_s=pipeline.bubble_s,
        gradient_s=gradient_s,
        optimizer_s=optimizer_s,
        other_s=time_s - known_s + system.step_s,
        memory=step_memory(prices, par),
    )
    if checks_memory:
        check_memory(price.memory, par, cluster)
    return price


def _gradient_s(prices: StagePrices, par: Parallelism, system: SystemProfile, times: GroupTimes) -> float:
    """Returns the exposed seconds of sums over replicas, and of gathers of what ZeRO has updated in shards."""
    if par.zero == 3 or par.data * par.context == 1:
        return 0.0
    stages = prices.actor_stages(0, par.pipeline)
    own = sum(stage.memory.parameters - stage.memory.expert_parameters for stage in stages)
    experts = sum(stage.memory.expert_parameters for stage in stages)
    # Experts have fewer copies: their sums move the same bytes over fewer devices.
    size = own + (experts if par.data * par.context > par.expert else 0.0)
    forward_s, backward_s = sum(stage.forward_s for stage in stages), sum(stage.backward_s for stage in stages)
    share, contention = system.data_overlap, times.chip.contention
    if par.zero == 0:
        return hide(times.data_sum_s(system.gradient_bytes * size), backward_s, share=share, contention=contention)
    scatter_s = times.shard_gather_s(system.gradient_bytes * size)
    scatter_s += times.replica_sum_s(system.gradient_bytes * size / par.num_shards)
    gather_s = times.shard_gather_s(PARAMETER_BYTES * size)
    return hide(scatter_s, backward_s, share=share, contention=contention) + hide(
        gather_s, forward_s, share=share, contention=contention
    )


def _optimizer_s(prices: StagePrices, par: Parallelism, system: SystemProfile, times: GroupTimes) -> float:
    stages = prices.actor_stages(0, par.pipeline)
    state = sum(stage.memory.optimizer_bytes for stage in stages) / 12
    return times.kernels.memory_pass(state * _OPTIMIZER_STEP_BYTES * system.optimizer_passes, num_kernels=4)


def step_memory(prices: StagePrices, parallelism: Parallelism) -> StepMemory:
    """Returns the memory of the fullest device: the first actor's, or the last one's with the logits.

    Where layers do not divide, the ends have fewer of them, and the second actor may be the fullest.

    In 1F1B the first of p actors keeps the activations of p microbatches, interleaved those of (p - 1) / v more stages;
    GPipe keeps all microbatches (arXiv 2205.05198, section 4.2.3).
    """
    par, actors = parallelism, parallelism.pipeline
    fullest = {0, min(1, actors - 1), actors - 1}
    return max((_actor_memory(prices, par, actor) for actor in fullest), key=lambda memory: memory.peak_bytes)


def _actor_memory(prices: StagePrices, par: Parallelism, actor: int) -> StepMemory:
    stages = prices.actor_stages(actor, par.pipeline)
    activations = sum(stage.memory.activation_bytes for stage in stages)
    ends = sum(stage.memory.end_bytes for stage in stages)
    kept = (activations - ends) * microbatches_kept(par, actor) + ends
    return StepMemory(
        weight_bytes=sum(stage.memory.weight_bytes for stage in stages),
        gradient_bytes=sum(stage.memory.gradient_bytes for stage in stages),
        optimizer_bytes=sum(stage.memory.optimizer_bytes for stage in stages),
        activation_bytes=kept,
    )


def microbatches_kept(parallelism: Parallelism, actor: int = 0) -> float:
    """Returns the microbatches whose activations an actor keeps at most, of all its stages.

    Example:
        >>> parallelism = jq.pricing.Parallelism(pipeline=8, num_chunks=3, global_batch=64)
        >>> round(jq.pricing.microbatches_kept(parallelism), 3)
        10.333
    """
    par = parallelism
    if par.pipeline == 1:
        return 1.0
    if par.schedule == "gpipe":
        return float(par.num_microbatches)
    kept = float(par.pipeline - actor)
    if par.num_chunks > 1:
        kept = par.pipeline + (par.pipeline - 1 - 2 * actor) / par.num_chunks
    return min(kept, float(par.num_microbatches))


def check_memory(memory: StepMemory, parallelism: Parallelism, cluster: Cluster) -> None:
    """Raises an InfeasibleStepError if a step does not fit the memory of a chip: by how much, and what fills it.

    Example:
        >>> memory = jq.pricing.StepMemory(
        ...     weight_bytes=2e9, gradient_bytes=4e9, optimizer_bytes=12e9, activation_bytes=6e9
        ... )
        >>> jq.pricing.check_memory(memory, jq.pricing.Parallelism(), jq.cluster.load_cluster("h100"))
    """
    available = cluster.memory.size_bytes * (1 - RESERVED_SHARE)
    if memory.peak_bytes <= available:
        return
    parts = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in memory.parts.items())
    largest = max(memory.parts, key=lambda name: memory.parts[name])
    advice = {
        "weights": "Shard parameters: a larger tensor or pipeline degree, or zero=3.",
        "gradients": "Shard gradients: a larger tensor or pipeline degree, or zero=2.",
        "optimizer state": "Shard the optimizer's state: zero=1, or a larger tensor or pipeline degree.",
        "activations": "Recompute more, or take smaller microbatches.",
    }[largest]
    raise InfeasibleStepError(
        f"the step needs {memory.peak_bytes / 1e9:.1f} GB a device ({parts}), but {cluster.name} has "
        f"{available / 1e9:.1f} GB for it: {(memory.peak_bytes - available) / 1e9:.1f} GB too much, most of it in "
        f"{largest}. {advice}"
    )
