"""How much is measured: sizes, rounds and the time of a sample, by kind of device and by haste."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a calibration measures.

    Attributes:
        shard_sizes_bytes: of the collectives; larger ones are left out where memory or time does not allow them.
        ms: rows of the products; `ks` their contracted dims, `ns` their columns.
        slices: the slice counts of the products, the whole one first.
        rounds: how often each is measured; the least time counts.
        sample_s: for how long a thing is repeated in one round.
        longest_s: what takes longer for one run ends the series of sizes.
    """

    shard_sizes_bytes: tuple[int, ...]
    ms: tuple[int, ...]
    ks: tuple[int, ...]
    ns: tuple[int, ...]
    slices: tuple[int, ...]
    rounds: int
    sample_s: float
    longest_s: float


_KIB = 1024
# 8 KB to 512 MB (section 4.5 of MeshSlice).
_ALL_SIZES = tuple(8 * _KIB * 4**power for power in range(9))

_ON_ACCELERATOR = Effort(
    shard_sizes_bytes=_ALL_SIZES, ms=(2048, 8192, 32768), ks=(3072, 12288), ns=(3072, 12288), slices=(1, 2, 4, 8),
    rounds=5, sample_s=0.1, longest_s=2.0,
)  # fmt: skip
_ON_ACCELERATOR_QUICKLY = Effort(
    shard_sizes_bytes=_ALL_SIZES[::2], ms=(2048, 8192), ks=(3072, 12288), ns=(3072, 6144), slices=(1, 2, 8),
    rounds=3, sample_s=0.03, longest_s=0.5,
)  # fmt: skip
_ON_CPU = Effort(
    shard_sizes_bytes=_ALL_SIZES, ms=(256, 512), ks=(512, 1024), ns=(256, 1024), slices=(1, 2, 4),
    rounds=5, sample_s=0.05, longest_s=0.5,
)  # fmt: skip
_ON_CPU_QUICKLY = Effort(
    shard_sizes_bytes=_ALL_SIZES[:5], ms=(128, 256), ks=(256, 512), ns=(256,), slices=(1, 2, 4),
    rounds=3, sample_s=0.01, longest_s=0.1,
)  # fmt: skip


def choose_effort(platform: str, *, is_quick: bool) -> Effort:
    """What to measure on a platform, as JAX names it."""
    if platform == "cpu":
        return _ON_CPU_QUICKLY if is_quick else _ON_CPU
    return _ON_ACCELERATOR_QUICKLY if is_quick else _ON_ACCELERATOR
