"""The prices of stages as the simulator takes them: seconds and bytes of each, and the work around the loop.

Of the sums over replicas, and of the gathers of what ZeRO has updated in shards, only the part that the framework does
not hide is there. The jitter of many hosts makes everything longer by the same share, as in `price_step`.
"""

import math
from dataclasses import replace

from jaxquard.cluster import ChipSpeeds
from jaxquard.cluster.cluster import Cluster
from jaxquard.pricing.model.group_times import GroupTimes
from jaxquard.pricing.model.memory import OPTIMIZER_BYTES, PARAMETER_BYTES, layer_activation_bytes
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.stage_prices import StagePrice, hide, stage_prices
from jaxquard.pricing.model.system import SystemProfile
from jaxquard.pricing.model.transformer import Transformer
from jaxquard.simulate.stage_cost import StageCost

# An update reads a gradient, a parameter in 32 bits and two moments, and writes all but the gradient, and 16 bits.
_UPDATE_BYTES = 30


def stage_costs(
    transformer: Transformer,
    parallelism: Parallelism,
    cluster: Cluster,
    system: SystemProfile,
    *,
    chip: ChipSpeeds | None = None,
    task_s: float = 0.0,
) -> tuple[StageCost, ...]:
    """Returns the costs of all stages, of one chip.

    Args:
        chip: instead of the cluster's own.
        task_s: that the runtime adds to each task, such as its dispatch.

    Raises:
        StepPriceError: if the strategy does not fit the transformer.

    Example:
        >>> llama = jq.pricing.find_transformer("Llama2-70B", seq=4096)
        >>> parallelism = jq.pricing.Parallelism(
        ...     tensor=8, pipeline=4, num_chunks=2, data=2, microbatch=4, global_batch=128, schedule="interleaved"
        ... )
        >>> cluster = jq.cluster.load_cluster("h100-8x8")
        >>> costs = jq.pricing.stage_costs(llama, parallelism, cluster, jq.pricing.find_system("JaxPP"))
        >>> playback = jq.simulate.play_pipeline(jq.schedules.Interleaved(8, 4), costs, num_microbatches=16)
        >>> 5 < playback.step_time_s < 12
        True
    """
    prices = stage_prices(transformer, parallelism, cluster, system, chip)
    times = GroupTimes(cluster, parallelism, chip)
    growth = 1 + system.jitter * math.log2(max(1, parallelism.num_devices / 8))
    working = 0.0
    if parallelism.recompute == "full":
        # One layer at a time has all its activations again.
        working = layer_activation_bytes(transformer, replace(parallelism, recompute="selective"), system)
    return tuple(
        _stage_cost(
            stage,
            parallelism,
            system,
            times,
            growth=growth,
            task_s=task_s,
            transfer_bytes=prices.transfer_bytes,
            working_bytes=working,
        )
        for stage in prices.stages
    )


def _stage_cost(
    stage: StagePrice,
    par: Parallelism,
    system: SystemProfile,
    times: GroupTimes,
    *,
    growth: float,
    task_s: float,
    transfer_bytes: float,
    working_bytes: float,
) -> StageCost:
    gather_s, gradient_sum_s = _exposed_sums_s(stage, par, system, times)
    memory = stage.memory
    update_bytes = memory.optimizer_bytes / OPTIMIZER_BYTES * _UPDATE_BYTES * system.optimizer_passes
    update_s = times.kernels.memory_pass(update_bytes, num_kernels=4) + system.step_s / par.num_chunks
    return StageCost(
        forward_s=growth * stage.forward_s + task_s,
        # A whole backward is one task; the weight gradient of a split one is dispatched with it.
        input_gradient_s=growth * stage.input_gradient_s + task_s,
        weight_gradient_s=growth * stage.weight_gradient_s,
        output_bytes=round(transfer_bytes),
        weight_bytes=round(memory.weight_bytes + memory.optimizer_bytes),
        gradient_bytes=round(memory.gradient_bytes),
        activation_bytes=round(memory.activation_bytes - memory.end_bytes),
        forward_working_bytes=round(memory.end_bytes),
        backward_working_bytes=round(memory.end_bytes + working_bytes),
        gather_s=growth * gather_s,
        gradient_sum_s=growth * gradient_sum_s,
        update_s=growth * update_s,
    )


def _exposed_sums_s(
    stage: StagePrice, par: Parallelism, system: SystemProfile, times: GroupTimes
) -> tuple[float, float]:
    """Returns the exposed seconds of the gather of parameters and of the sum of gradients of a stage."""
    if par.zero == 3 or par.data * par.context == 1:
        return 0.0, 0.0
    memory = stage.memory
    own = memory.parameters - memory.expert_parameters
    size = own + (memory.expert_parameters if par.data * par.context > par.expert else 0.0)

    def exposed(collective_s: float, window_s: float) -> float:
        return hide(collective_s, window_s, share=system.data_overlap, contention=times.chip.contention)

    if par.zero == 0:
        return 0.0, exposed(times.data_sum_s(system.gradient_bytes * size), stage.backward_s)
    scatter_s = times.shard_gather_s(system.gradient_bytes * size)
    scatter_s += times.replica_sum_s(system.gradient_bytes * size / par.num_shards)
    gather_s = times.shard_gather_s(PARAMETER_BYTES * size)
    return exposed(gather_s, stage.forward_s), exposed(scatter_s, stage.backward_s)
