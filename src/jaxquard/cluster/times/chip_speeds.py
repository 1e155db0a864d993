"""The speeds of a chip's kernels: what its cluster's file says, and what chips.toml knows of chips of its name.

The file has the speed of large products in 16 bits and the constants of their shapes (`Compute`), the memory, and the
speeds of the kinds of kernels that were measured (`Cluster.kernels`). chips.toml has what a file leaves out: other
kinds of numbers, fused attention, and what is lost beside other work.
"""

import functools
import math
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

from jaxquard.cluster.cluster import Cluster, Compute
from jaxquard.cluster.speeds import KernelKind, KernelSpeed

FORMATS = ("fp64", "fp32", "fp16", "bf16", "fp8", "fp4", "c64", "c128")
# Names of JAX and of HLO that do not begin as the name here does.
_FORMATS_BY_PREFIX = {
    "bfloat16": "bf16", "float16": "fp16", "f16": "fp16", "float32": "fp32", "float64": "fp64", "f32": "fp32",
    "f64": "fp64", "float8": "fp8", "f8": "fp8", "float4": "fp4", "f4": "fp4", "complex64": "c64", "complex128": "c128",
    "s8": "fp8", "u8": "fp8", "int8": "fp8", "uint8": "fp8", "s4": "fp8", "u4": "fp8", "int4": "fp8", "uint4": "fp8",
    "s32": "fp32", "u32": "fp32", "int32": "fp32", "uint32": "fp32", "s64": "fp64", "u64": "fp64", "int64": "fp64",
    "uint64": "fp64",
}  # fmt: skip
# Of GPUs' matrix units; whatever else the table of chips says.
_WIDE_RATES = {"fp64": 1 / 15, "c64": 1 / 8, "c128": 1 / 60}
ITEM_BYTES = {"fp64": 8.0, "fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5, "c64": 8.0, "c128": 16.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """The speed of fused attention with a causal mask and heads of 128.

    Attributes:
        half_seq: the sequence at which half of the speed is reached.

    Example:
        >>> jq.cluster.times_of(jq.cluster.load_cluster("a100")).find_flash("flash3").half_seq
        400
    """

    forward_flops_per_s: float
    backward_flops_per_s: float
    half_seq: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChipSpeeds:
    """The speeds of a chip's kernels, each running alone.

    Attributes:
        compute: of the cluster: the speed of large products in 16 bits, and the constants of their shapes.
        rates: the FLOP/s of products by kind of number, relative to 16 bits; one that is missing runs as the next
            wider one.
        bandwidth_bytes_per_s: of the memory; infinite where only arithmetic counts (MeshSlice's own constants).
        memory_share: of that, what passes over large arrays reach.
        memory_bytes: the size of the memory.
        contention: by how much compute slows while a collective runs beside it.
        training_share: of the speed of a kernel alone, what it has inside of a training step, where all chips of a
            host are hot and share its power and its cooling.
        hides_arithmetic: passes over memory hide other arithmetic, as on every accelerator; a CPU's core does not.
        flash: fused attention, by its generation.
        best_mfu: the highest utilisation of a training step that is published, by kind of number.
        kernels: the kinds of kernels that were measured.

    Example:
        >>> chip = jq.cluster.chip_speeds(jq.cluster.load_cluster("h100"))
        >>> chip.name, f"{chip.flops_per_s('bf16'):.3g}", f"{chip.flops_per_s('fp8'):.3g}"
        ('h100', '7.21e+14', '1.28e+15')
    """

    name: str
    compute: Compute
    rates: dict[str, float]
    bandwidth_bytes_per_s: float
    memory_share: float
    memory_bytes: float
    contention: float
    training_share: float
    hides_arithmetic: bool
    flash: dict[str, Flash]
    best_mfu: dict[str, float] = field(default_factory=dict)
    kernels: tuple[KernelSpeed, ...] = ()

    def flops_per_s(self, dtype: str) -> float:
        """Returns the FLOP/s of large products of a kind of number (`number_format`)."""
        return self.compute.effective_flops_per_s * self.rate(dtype)

    def rate(self, dtype: str) -> float:
        """Returns the speed of a kind of number relative to 16 bits; an unknown narrow one runs in 16 bits."""
        return self.rates.get(number_format(dtype), 1.0)

    def kernel(self, kind: KernelKind, dtype: str) -> KernelSpeed | None:
        """Returns the measured speed of a kind of kernel: of this type, or of another; None if none was measured."""
        known = [speed for speed in self.kernels if speed.kind is kind]
        return next((speed for speed in known if speed.dtype == dtype), known[0] if known else None)

    def at_speed(self, factor: float) -> "ChipSpeeds":
        """Returns a chip whose arithmetic runs faster or slower by a factor, as under another power limit.

        Example:
            >>> chip = jq.cluster.chip_speeds(jq.cluster.load_cluster("h100"))
            >>> round(chip.at_speed(0.9).flops_per_s("bf16") / chip.flops_per_s("bf16"), 3)
            0.9
        """
        effective = self.compute.effective_flops_per_s * factor
        return replace(
            self,
            compute=replace(self.compute, effective_flops_per_s=effective),
            flash={
                name: Flash(
                    forward_flops_per_s=flash.forward_flops_per_s * factor,
                    backward_flops_per_s=flash.backward_flops_per_s * factor,
                    half_seq=flash.half_seq,
                )
                for name, flash in self.flash.items()
            },
            kernels=tuple(
                replace(speed, flops_per_s=speed.flops_per_s * factor) if speed.kind is KernelKind.PRODUCT else speed
                for speed in self.kernels
            ),
        )


def number_format(dtype: str) -> str:
    """Returns the kind of number by the name that JAX or HLO gives it; what is no number of a product stays itself.

    Example:
        >>> jq.cluster.number_format("bfloat16"), jq.cluster.number_format("f8e4m3fn")
        ('bf16', 'fp8')
    """
    return _cached_format(dtype)


@functools.cache
def _cached_format(dtype: str) -> str:
    if dtype in FORMATS:
        return dtype
    matches = [prefix for prefix in _FORMATS_BY_PREFIX if dtype.startswith(prefix)]
    return _FORMATS_BY_PREFIX[max(matches, key=len)] if matches else dtype


@functools.cache
def _chips() -> tuple[dict, ...]:
    text = (Path(__file__).parent / "chips.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["chips"])


def chip_speeds(cluster: Cluster) -> ChipSpeeds:
    """Returns the speeds of a cluster's chip.

    Example:
        >>> jq.cluster.chip_speeds(jq.cluster.load_cluster("v5e-4x4")).compute.systolic_dim
        128
    """
    return _cached_speeds(cluster)


@functools.cache
def _cached_speeds(cluster: Cluster) -> ChipSpeeds:
    words = set(re.split(r"[^a-z0-9]+", cluster.name.lower()))
    chip = next((chip for chip in _chips() if words & set(chip["words"])), _unknown_chip(cluster))
    return ChipSpeeds(
        name=chip["name"],
        compute=cluster.compute,
        rates={**_WIDE_RATES, **chip["rates"]},
        bandwidth_bytes_per_s=math.inf if cluster.is_paper_set else cluster.memory.bandwidth_bytes_per_s,
        memory_share=chip["memory_share"],
        memory_bytes=cluster.memory.size_bytes,
        contention=chip["contention"],
        training_share=chip["in_training"],
        hides_arithmetic=chip.get("hides_arithmetic", True),
        flash={
            name: Flash(forward_flops_per_s=forward, backward_flops_per_s=backward, half_seq=half_seq)
            for name, (forward, backward, half_seq) in chip["flash"].items()
        },
        best_mfu=chip.get("best_mfu", {}),
        kernels=cluster.kernels,
    )


def _unknown_chip(cluster: Cluster) -> dict:
    """Returns estimates for a chip that is not in the table; its fused attention has two thirds of products' speed."""
    speed, is_systolic = cluster.compute.effective_flops_per_s, cluster.compute.systolic_dim > 0
    return {
        "name": cluster.name,
        "rates": {"fp64": 0.1, "fp32": 0.5, "fp8": 2.0, "c64": 0.125, "c128": 0.02},
        "memory_share": 0.87,
        "contention": 0.1 if is_systolic else 0.25,
        "in_training": 0.9,
        "flash": {"flash2": (speed * 2 / 3, speed / 2, 500)},
    }
