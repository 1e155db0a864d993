"""Bytes of a stage on one device: its state, and the activations that it keeps for one microbatch.

Activations follow Korthikanti et al. (arXiv 2205.05198, table 2), generalised to other widths. With s tokens of a
sequence over the context group, b sequences, t devices of the tensor group, one layer of width h with a heads keeps:

    nothing recomputed                 s b h (10 + 24/t + 5 a s / (h t))
    with sequence parallelism          s b h (34 + 5 a s / h) / t
    scores recomputed or fused         the same without the last term
    everything recomputed              2 s b h

Their 34 is: both norms 4; attention 11 (its input 2; q, k, v 6; the projection's input 2; a mask 1); the MLP 19 (its
input 2, before and behind the activation 16, a mask 1). Masks are there in models with dropout, which are those with
biases.

State: 2 bytes of a 16-bit parameter, the gradient's, and 12 of Adam's (a parameter in 32 bits and two moments).
"""

from dataclasses import dataclass

from jaxquard.cluster.times.chip_speeds import ITEM_BYTES
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.system import SystemProfile
from jaxquard.pricing.model.transformer import Transformer

PARAMETER_BYTES = 2
OPTIMIZER_BYTES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one stage on one device.

    Attributes:
        parameters: of the stage on the device before ZeRO shards them, those of experts among them.
        expert_parameters: those of experts.
        weight_bytes: with the whole layer that FSDP gathers.
        activation_bytes: kept for one microbatch.
        end_bytes: of these, what only the first and the last stage have (logits, for one); there while a task runs.

    Example:
        >>> memory = jq.pricing.StageMemory(
        ...     parameters=10, weight_bytes=20, gradient_bytes=40, optimizer_bytes=120, activation_bytes=5
        ... )
        >>> memory.state_bytes
        180
    """

    parameters: float
    expert_parameters: float = 0.0
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    end_bytes: float = 0.0

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and the optimizer's state."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes


def layer_activation_bytes(
    transformer: Transformer, parallelism: Parallelism, system: SystemProfile, *, is_moe: bool = False
) -> float:
    """Returns the bytes that one layer keeps of one microbatch on one device.

    Example:
        >>> turing = jq.pricing.Transformer(num_layers=105, hidden=20480, num_heads=128, vocab=51200, seq=2048)
        >>> parallelism = jq.pricing.Parallelism(tensor=8, microbatch=1)
        >>> megatron = jq.pricing.find_system("Megatron-LM 2022")
        >>> f"{jq.pricing.layer_activation_bytes(turing, parallelism, megatron) / 2048 / 20480:.1f} s b h"
        '21.0 s b h'
    """
    par, t = parallelism, parallelism.tensor
    tokens = par.microbatch * transformer.seq / par.context
    hidden = transformer.hidden
    # The input of a layer, sharded as the norms are.
    whole = 2 * tokens * hidden / (t if par.sequence else 1)
    if par.recompute == "full" and par.recompute_share >= 1:
        return whole
    mask = 1 if transformer.has_biases else 0
    split = t if par.sequence else 1
    norms_and_inputs = (8 + 2 * mask) * hidden / split
    # With fewer heads of keys and values than devices, every device has one.
    kv = max(transformer.kv_width, transformer.head_dim * t)
    attention = (2 * transformer.query_width + 4 * kv + 2 * transformer.query_width) / t
    width = transformer.ffn
    if is_moe:
        width = transformer.expert_ffn * transformer.top_k + transformer.shared_ffn
        attention += 4 * hidden * transformer.top_k / t
    mlp = 2 * transformer.num_mlp_matrices * width / t
    scores = 0.0
    if system.attention == "unfused" and par.recompute == "none":
        scores = 5 * transformer.num_heads * transformer.seq / t
    # Products in 8 bits keep their inputs in 8 bits: those of q, k, v, of the projection, and of both sides of the MLP.
    narrow = 0.0
    if ITEM_BYTES[par.dtype] < 2:
        narrow = 2 * hidden / split + (transformer.query_width + width) / t
    kept = tokens * (norms_and_inputs + attention + mlp + scores - narrow) * system.activation_share
    if par.recompute == "full":
        return par.recompute_share * whole + (1 - par.recompute_share) * kept
    return kept


def head_activation_bytes(transformer: Transformer, parallelism: Parallelism) -> float:
    """Returns the bytes that the output layer keeps of one microbatch: its input, and logits in 32 bits."""
    tokens = parallelism.microbatch * transformer.seq / parallelism.context
    return 4 * tokens * (transformer.hidden + transformer.vocab) / parallelism.tensor


def stage_memory(
    parallelism: Parallelism,
    system: SystemProfile,
    *,
    parameters: float,
    expert_parameters: float,
    layer_parameters: float,
    activation_bytes: float,
    end_bytes: float = 0.0,
) -> StageMemory:
    """Returns the bytes of a stage.

    Args:
        parameters: on the device that all replicas have, before ZeRO shards them.
        expert_parameters: on the device, of which only the replicas of an expert have a copy.
        layer_parameters: of the largest layer, which FSDP gathers.
    """
    par = parallelism
    shards = par.num_shards * (par.context if par.zero else 1)
    expert_shards = max(1, shards / par.expert) if par.zero else 1
    optimizer = parameters / shards + expert_parameters / expert_shards
    whole = parameters + expert_parameters
    gradients = optimizer if par.zero >= 2 else whole
    weights = PARAMETER_BYTES * whole
    if par.zero == 3:
        # The gathered copy of two layers: the one that computes and the next.
        weights = PARAMETER_BYTES * 2 * layer_parameters
    return StageMemory(
        parameters=whole,
        expert_parameters=expert_parameters,
        weight_bytes=weights,
        gradient_bytes=system.gradient_bytes * gradients,
        optimizer_bytes=OPTIMIZER_BYTES * optimizer,
        activation_bytes=activation_bytes,
        end_bytes=end_bytes,
    )
