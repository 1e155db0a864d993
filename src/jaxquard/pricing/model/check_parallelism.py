"""Checks of a strategy against a transformer: what cannot run is refused with the sizes that do not fit."""

from jaxquard.cluster.cluster import Cluster
from jaxquard.errors import StepPriceError
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.transformer import Transformer


def check_parallelism(transformer: Transformer, parallelism: Parallelism, num_devices: int | None = None) -> None:
    """Raises a StepPriceError if a strategy cannot run a transformer.

    Args:
        num_devices: that the strategy must use; by default as many as it says.

    Example:
        >>> gpt = jq.pricing.Transformer(num_layers=24, hidden=2048, num_heads=16, vocab=51200, seq=2048)
        >>> jq.pricing.check_parallelism(gpt, jq.pricing.Parallelism(tensor=8, data=2, global_batch=2), num_devices=16)
    """
    par = parallelism
    if num_devices is not None and par.num_devices != num_devices:
        raise StepPriceError(
            f"tensor {par.tensor} x context {par.context} x data {par.data} x pipeline {par.pipeline} is "
            f"{par.num_devices} devices, but there are {num_devices}. Give degrees whose product is {num_devices}."
        )
    if transformer.num_heads % par.tensor:
        raise StepPriceError(
            f"{transformer.num_heads} heads do not divide among a tensor group of {par.tensor}. Give a tensor degree "
            f"that divides {transformer.num_heads}."
        )
    if par.num_stages > transformer.num_layers:
        raise StepPriceError(
            f"{par.pipeline} actors with {par.num_chunks} chunks each make {par.num_stages} stages, but there are "
            f"{transformer.num_layers} layers. Give fewer actors or chunks."
        )
    if transformer.seq % par.context:
        raise StepPriceError(
            f"a sequence of {transformer.seq} tokens does not divide among a context group of {par.context}."
        )
    if par.expert > 1:
        _check_experts(transformer, par)


def check_fits_cluster(parallelism: Parallelism, cluster: Cluster) -> None:
    """Raises a StepPriceError if a strategy has more devices than a cluster, or replicas without a sequence."""
    par = parallelism
    if par.num_devices > cluster.num_chips:
        raise StepPriceError(
            f"tensor {par.tensor} x context {par.context} x data {par.data} x pipeline {par.pipeline} is "
            f"{par.num_devices} devices, but {cluster.name} has {cluster.num_chips} chips. Give smaller degrees, or a "
            "larger cluster, such as h100-8x2048."
        )
    if par.global_batch < par.data:
        raise StepPriceError(
            f"a global batch of {par.global_batch} leaves some of {par.data} replicas without a sequence. Give a "
            f"global_batch of {par.data} or more, or fewer replicas."
        )


def _check_experts(transformer: Transformer, par: Parallelism) -> None:
    if not transformer.num_experts:
        raise StepPriceError(f"expert parallelism of {par.expert} needs experts, but the transformer is dense.")
    if transformer.num_experts % par.expert:
        raise StepPriceError(
            f"{transformer.num_experts} experts do not divide among an expert group of {par.expert}. Give an expert "
            f"degree that divides {transformer.num_experts}."
        )
    available = par.num_devices // par.pipeline // (par.expert_tensor or par.tensor)
    if available % par.expert:
        raise StepPriceError(
            f"an expert group of {par.expert} does not divide the {available} devices of a stage that can share "
            "experts. Give an expert degree that divides them."
        )
