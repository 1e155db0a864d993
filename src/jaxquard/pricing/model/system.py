"""The constants of a training framework: which kernels it uses, what it fuses, and what it hides behind compute.

They stand in systems.toml, each with its source. A constant holds for every model, every cluster and every strategy
that the framework runs. A framework that is not there takes the constants of its kind, found by words in its name.
"""

import functools
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemProfile:
    """The constants of a training framework.

    Attributes:
        attention: "unfused", "flash1", "flash2" or "flash3": the generation of its attention kernels.
        elementwise: bytes that its passes over memory move, over those of perfectly fused ones.
        loss_bytes: that the loss moves for each logit, forward and backward.
        gradient_bytes: of one gradient in sums over replicas.
        accumulation_bytes: that a pass of its own moves to add one gradient to those of earlier microbatches; 0 where
            the product adds it.
        sequence: it shards norms over the tensor group.
        zero: what its data parallelism shards unless a strategy says otherwise.
        tensor_overlap: of the tensor group's collectives, the share that can hide behind products.
        data_overlap: of gradient sums, the share that can hide behind the backward of the last microbatch.
        fsdp_bandwidth: of the bandwidth of a group, what FSDP's collectives reach.
        fsdp_overlap: of FSDP's collectives, the share that can hide behind compute.
        pipeline_overlap: of the messages between stages, the share that hides.
        expert_overlap: of the all-to-alls of experts, the share that can hide.
        matmul_share: of the speed of the vendor's best products, what its products reach.
        optimizer_passes: bytes that the optimizer's step moves, over those of a fused one.
        host_s: that the host takes to issue one layer's kernels, forward; products faster than that wait.
        step_s: of each step beside the model: data, logs, checks for overflow.
        jitter: the share by which a step grows each time that the number of hosts doubles.
        keeps_parameters: FSDP gathers a microbatch's parameters once for forward and backward.
        gathers_each_microbatch: FSDP gathers parameters anew for each microbatch.
        skips_last_product: recomputation stops before the product whose output no gradient needs, the MLP's second one.
        activation_share: of the activations that the papers count, what it keeps where nothing is recomputed.
        selective_share: of the forward compute, what its selective recomputation runs again; 0: attention scores alone.

    Example:
        >>> jq.pricing.find_system("Megatron-LM 2021").attention
        'unfused'
    """

    name: str
    words: tuple[str, ...] = ()
    attention: str = "flash2"
    elementwise: float = 1.3
    loss_bytes: float = 24.0
    gradient_bytes: int = 4
    accumulation_bytes: float = 0.0
    sequence: bool = False
    zero: int = 0
    tensor_overlap: float = 0.0
    data_overlap: float = 0.8
    fsdp_bandwidth: float = 1.0
    fsdp_overlap: float = 0.9
    pipeline_overlap: float = 0.5
    expert_overlap: float = 0.0
    matmul_share: float = 1.0
    optimizer_passes: float = 1.0
    host_s: float = 0.0
    step_s: float = 0.0
    jitter: float = 0.003
    keeps_parameters: bool = False
    gathers_each_microbatch: bool = True
    skips_last_product: bool = True
    activation_share: float = 1.0
    selective_share: float = 0.0


def known_systems() -> tuple[SystemProfile, ...]:
    """Returns the frameworks in systems.toml, the more particular ones first.

    Example:
        >>> jq.pricing.known_systems()[-1].name
        'any'
    """
    return _read_systems()


@functools.cache
def _read_systems() -> tuple[SystemProfile, ...]:
    text = (Path(__file__).parent / "systems.toml").read_text(encoding="utf-8")
    names = {entry.name for entry in fields(SystemProfile)}
    systems = []
    for table in tomllib.loads(text)["systems"]:
        unknown = set(table) - names
        assert not unknown, unknown
        values: dict[str, Any] = {**table, "words": tuple(table["words"])}
        systems.append(SystemProfile(**values))
    return tuple(systems)


def find_system(name: str) -> SystemProfile:
    """Returns the constants of a framework: the first whose words all occur in the name, or those of any framework.

    Example:
        >>> jq.pricing.find_system("NeMo 24.07").sequence, jq.pricing.find_system("my own loop").name
        (True, 'any')
    """
    wanted = name.lower()
    for system in known_systems():
        if any(all(part in wanted for part in words.split()) for words in system.words):
            return system
    return known_systems()[-1]
