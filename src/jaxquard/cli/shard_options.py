"""Options that the subcommands of `jaxquard shard` share, and what their words mean."""

import contextlib
import math
import re
from pathlib import Path
from typing import Annotated

import jax
import typer
from jax.sharding import Mesh

from jaxquard.errors import ShardingError
from jaxquard.pricing import PriceCache
from jaxquard.pricing.measure.steady_cpu import make_cpu_steady

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|MODULE:FUNCTION",
        help="A model of the zoo, such as gpt-tiny; or a function that returns (train_step, args).",
    ),
]
MeshOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|NxM", help="Sizes of the mesh axes, the outer one first.", show_default="all devices; show: 8"
    ),
]
DevicesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="How many virtual CPU devices there are, or how many GPUs or TPUs are used.",
        show_default="8, or all",
    ),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Sequences in the batch.", show_default="8 for a model")
]
LimitOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="What a step may take on each device, such as 2GiB or 500MB.")
]
CacheOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where prices are kept.", show_default="~/.cache/jaxquard/prices")
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Keep no prices, and use none.")]
EveryOption = Annotated[
    bool,
    typer.Option("--every-combination", help="On a mesh of two axes, do not hold the outer one to cutting the batch."),
]
CpuOption = Annotated[bool, typer.Option("--cpu", help="Use virtual CPU devices even if there is a GPU.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_AXES = {1: ("devices",), 2: ("outer", "inner")}
_NUM_CPU_DEVICES = 8
_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_mesh(text: str | None) -> tuple[int, ...] | None:
    """`8` and `2x4` in numbers."""
    if text is None:
        return None
    words = text.lower().split("x")
    if not all(word.isdecimal() and int(word) > 0 for word in words) or len(words) not in _AXES:
        raise ShardingError(f"--mesh should be one size or two, such as 8 or 2x4, but is {text!r}.")
    return tuple(map(int, words))


def mesh_axes(sizes: tuple[int, ...]) -> dict[str, int]:
    """Sizes with the names that the command line gives to axes."""
    return dict(zip(_AXES[len(sizes)], sizes, strict=True))


def parse_size(text: str | None, *, option: str = "--memory-limit") -> int | None:
    """`2GiB`, `500 MB` and `1000000` in bytes."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    unit = None if found is None else _UNITS.get(found[2])
    size_bytes = 0.0 if found is None or unit is None else float(found[1]) * unit
    if not 1 <= size_bytes < math.inf:
        raise ShardingError(
            f"{option} should be a size above 0, such as 2GiB, 500MB or 1000000 (bytes), but is {text!r}."
        )
    return int(size_bytes)


def choose_cache(folder: Path | None, *, no_cache: bool) -> PriceCache | None:
    """Where prices are kept; None for nowhere."""
    if no_cache and folder is not None:
        raise ShardingError(f"--cache {folder} and --no-cache contradict each other. Leave one out.")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ShardingError(f"--cache {folder} is a file. Give a folder, which is made if it is not there.")
    return None if no_cache else PriceCache(folder)


def prepare_devices(*, cpu: bool, num_devices: int | None, sizes: tuple[int, ...] | None) -> None:
    """Says how many virtual CPU devices there shall be; JAX itself starts later, unless it has already."""
    if num_devices is not None and sizes is not None and math.prod(sizes) > num_devices:
        raise _does_not_fit(sizes, f"--devices is {num_devices}")
    if cpu:
        jax.config.update("jax_platforms", "cpu")
    make_cpu_steady()
    wanted = num_devices or (math.prod(sizes) if sizes else _NUM_CPU_DEVICES)
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", wanted)


def start_mesh(sizes: tuple[int, ...] | None, *, num_devices: int | None) -> Mesh:
    """A mesh of the first devices: of these sizes, or of all there are, or so many, along one axis."""
    devices = jax.devices()
    if num_devices is not None and num_devices > len(devices):
        raise ShardingError(
            f"--devices is {num_devices}, but JAX has {_devices(devices)}. Give --devices {len(devices)}."
        )
    if sizes is None and num_devices is None and len(devices) == 1:
        raise ShardingError(
            f"JAX has one device, of the platform {devices[0].platform}, and on one there is nothing to shard. Use "
            "--cpu for 8 virtual CPU devices, or --mesh 1 to go on anyway."
        )
    sizes = sizes or (num_devices or len(devices),)
    if math.prod(sizes) > len(devices):
        raise _does_not_fit(sizes, f"JAX has {_devices(devices)}")
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.make_mesh(sizes, _AXES[len(sizes)], axis_types=types, devices=devices[: math.prod(sizes)])


def _devices(devices: list[jax.Device]) -> str:
    return f"{len(devices)} of the platform {devices[0].platform}"


def _does_not_fit(sizes: tuple[int, ...], found: str) -> ShardingError:
    mesh = "x".join(map(str, sizes))
    return ShardingError(f"--mesh {mesh} has {math.prod(sizes)} devices, but {found}. Give a smaller mesh.")
