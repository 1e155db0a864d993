"""Options that the subcommands of `jaxquard shard` share, and the reading of their values."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.options import MOST_DEVICES, complete, is_count

if TYPE_CHECKING:
    from jaxquard.pricing import PriceCache

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|MODULE:FUNCTION",
        help="A model, such as gpt-tiny or gpt:6.7b (see jaxquard list models); or a function that returns "
        "(train_step, args).",
    ),
]
_MESH_HELP = "Sizes of the mesh axes, the outer one first."
MeshOption = Annotated[str | None, typer.Option(metavar="N|NxM", help=_MESH_HELP, show_default="all devices")]
# Of a command that starts no devices, and takes as many as it likes.
ShownMeshOption = Annotated[str | None, typer.Option(metavar="N|NxM", help=_MESH_HELP, show_default="8")]
ShownDevicesOption = Annotated[
    int | None,
    typer.Option(
        "--devices",
        metavar="N",
        min=1,
        max=MOST_DEVICES,
        help="How many devices there are: the size of a mesh of one axis.",
        show_default="8",
    ),
]
DevicesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=MOST_DEVICES,
        help="How many virtual CPU devices there are, or how many GPUs or TPUs are used.",
        show_default="8, or all",
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option("--batch-size", metavar="N", min=1, help="Sequences in the batch.", show_default="8 for a model"),
]
CacheOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where prices are kept.", show_default="~/.cache/jaxquard/prices")
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Keep no prices, and use none.")]
EveryOption = Annotated[
    bool,
    typer.Option(
        "--every-combination", help="On a mesh of two axes, let the outer one shard any dim, not the batch alone."
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Offer blocks on two axes as 2D products too, sliced for these chips: a preset or a TOML file.",
        show_default="that of the GPUs or TPUs",
    ),
]
LoopBudgetOption = Annotated[
    float,
    typer.Option(
        "--loop-budget",
        metavar="SECONDS",
        min=0,
        help="Time in which the fastest plans are compiled whole and run as training loops in the end; 0 for none.",
    ),
]
SearchBudgetOption = Annotated[
    float | None,
    typer.Option(
        "--time-budget",
        metavar="SECONDS",
        min=0,
        help="Time of the whole search: the most important programs are priced, and the others modelled; 0 for no end.",
        show_default="300",
    ),
]

PRICERS = ("measure", "compile", "mock-gpu")
PricerOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=complete(*PRICERS),
        help="measure runs programs on the devices here; compile asks the compiler of --cluster, which need not be "
        "here; mock-gpu has one GPU here stand in for those of --cluster.",
    ),
]

_MOST_AXES = 2


def parse_mesh(text: str | None) -> tuple[int, ...] | None:
    """Reads `8` and `2x4`."""
    if text is None:
        return None
    words = text.lower().split("x")
    if not all(map(is_count, words)) or len(words) > _MOST_AXES:
        raise UsageError(f"--mesh should be one size or two, such as 8 or 2x4, but is {text!r}.")
    sizes = tuple(map(int, words))
    if math.prod(sizes) > MOST_DEVICES:
        raise UsageError(f"--mesh {text} has {math.prod(sizes)} devices. Give a mesh of at most {MOST_DEVICES}.")
    return sizes


def choose_cache(folder: Path | None, *, no_cache: bool) -> "PriceCache | None":
    """Returns the cache in which prices are kept; None for nowhere."""
    if no_cache and folder is not None:
        raise UsageError(f"--cache {folder} and --no-cache contradict each other. Leave one out.")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"--cache {folder} is a file. Give a folder, which is made if it is not there.")
    from jaxquard.pricing import PriceCache

    return None if no_cache else PriceCache(folder)
