"""The constants of a chip's kernels: FLOP/s of products and of fused attention, by kind of number.

They stand in chips.toml with their sources. A cluster whose chip is not there takes what its own file says.
"""

import functools
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from jaxquard.cluster.cluster import Cluster
from jaxquard.errors import StepPriceError

DTYPES = ("fp32", "fp16", "bf16", "fp8", "fp4")
ITEM_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """The speed of fused attention with a causal mask and heads of 128.

    Attributes:
        half_seq: the sequence at which half of the speed is reached.
    """

    forward_flops_per_s: float
    backward_flops_per_s: float
    half_seq: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChipProfile:
    """The constants of a chip's kernels.

    Attributes:
        matmul_flops_per_s: that large products sustain, by kind of number.
        start_depth: the contracted dim that the start and the end of a tile are worth.
        wave_rounding: of the idle share of the last wave of tiles, what is lost.
        tile: rows and columns of an output tile, or of the systolic array.
        memory_bandwidth_bytes_per_s: that passes over large arrays reach.
        contention: by how much compute slows while a collective runs beside it.
        launch_s: between two kernels.
        flash: fused attention, by its generation.

    Example:
        >>> chip = jq.pricing.chip_of(jq.cluster.load_cluster("h100"))
        >>> chip.name, f"{chip.matmul_flops_per_s['bf16']:.3g}"
        ('h100', '5.98e+14')
    """

    name: str
    is_systolic: bool
    matmul_flops_per_s: dict[str, float]
    start_depth: float
    wave_rounding: float
    num_cores: int
    tile: tuple[int, int]
    memory_bandwidth_bytes_per_s: float
    memory_bytes: float
    contention: float
    launch_s: float
    flash: dict[str, Flash]

    def flops_per_s(self, dtype: str) -> float:
        """Returns the FLOP/s of large products; a kind of number that the chip lacks runs as the next wider one."""
        if dtype not in DTYPES:
            raise StepPriceError(f"there are no products of {dtype!r}. Use one of: {', '.join(DTYPES)}.")
        for name in (dtype, "bf16", "fp16", "fp32"):
            if name in self.matmul_flops_per_s:
                return self.matmul_flops_per_s[name]
        raise StepPriceError(f"chip {self.name} has no FLOP/s for products. Give its cluster file a [compute] table.")


@functools.cache
def _chips() -> tuple[dict, ...]:
    text = (Path(__file__).parent / "chips.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["chips"])


def chip_of(cluster: Cluster) -> ChipProfile:
    """Returns the constants of a cluster's chip.

    Example:
        >>> jq.pricing.chip_of(jq.cluster.load_cluster("v5e-4x4")).is_systolic
        True
    """
    return _cached_chip(cluster)


@functools.cache
def _cached_chip(cluster: Cluster) -> ChipProfile:
    words = set(re.split(r"[^a-z0-9]+", cluster.name.lower()))
    found = next((chip for chip in _chips() if words & set(chip["words"])), None)
    return _from_cluster(cluster) if found is None else _from_table(found, cluster)


def _from_table(chip: dict, cluster: Cluster) -> ChipProfile:
    slowed = chip["in_training"]
    sustained = chip["sustained"] * slowed
    return ChipProfile(
        name=chip["name"],
        is_systolic=chip.get("is_systolic", False),
        matmul_flops_per_s={dtype: flops * sustained for dtype, flops in chip["matmul_flops_per_s"].items()},
        start_depth=chip["start_depth"],
        wave_rounding=chip["wave_rounding"],
        num_cores=chip["num_cores"],
        tile=(chip["tile"][0], chip["tile"][1]),
        memory_bandwidth_bytes_per_s=cluster.memory.bandwidth_bytes_per_s * chip["memory_share"],
        memory_bytes=cluster.memory.size_bytes,
        contention=chip["contention"],
        launch_s=_launch_s(cluster),
        flash={
            name: _flash(forward * slowed, backward * slowed, half_seq)
            for name, (forward, backward, half_seq) in chip["flash"].items()
        },
    )


def _from_cluster(cluster: Cluster) -> ChipProfile:
    """Takes what a cluster's file says of its chip; fused attention runs at two thirds of the speed of products."""
    speed = cluster.compute.effective_flops_per_s
    side = cluster.compute.systolic_dim
    return ChipProfile(
        name=cluster.name,
        is_systolic=side > 0,
        matmul_flops_per_s={"fp16": speed, "bf16": speed, "fp32": speed / 2, "fp8": 2 * speed},
        start_depth=113,
        wave_rounding=0.0,
        num_cores=max(1, cluster.compute.num_cores),
        tile=(side, side) if side else (128, 128),
        memory_bandwidth_bytes_per_s=cluster.memory.bandwidth_bytes_per_s * 0.87,
        memory_bytes=cluster.memory.size_bytes,
        contention=0.1 if side else 0.25,
        launch_s=_launch_s(cluster),
        flash={"flash2": _flash(speed * 2 / 3, speed / 2, 500)},
    )


def _launch_s(cluster: Cluster) -> float:
    # A cluster's `launch_s` is that of a call from the host. Kernels that follow each other in a queue take this long.
    return min(3e-6, cluster.compute.launch_s)


def _flash(forward: float, backward: float, half_seq: float) -> Flash:
    return Flash(forward_flops_per_s=forward, backward_flops_per_s=backward, half_seq=half_seq)


def with_speed(chip: ChipProfile, factor: float) -> ChipProfile:
    """Returns a chip whose kernels run faster or slower by a factor, as under another power limit.

    Example:
        >>> chip = jq.pricing.chip_of(jq.cluster.load_cluster("h100"))
        >>> slower = jq.pricing.with_speed(chip, 0.9)
        >>> round(slower.matmul_flops_per_s["bf16"] / chip.matmul_flops_per_s["bf16"], 3)
        0.9
    """
    return replace(
        chip,
        matmul_flops_per_s={dtype: flops * factor for dtype, flops in chip.matmul_flops_per_s.items()},
        flash={
            name: _flash(flash.forward_flops_per_s * factor, flash.backward_flops_per_s * factor, flash.half_seq)
            for name, flash in chip.flash.items()
        },
    )
