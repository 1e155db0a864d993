"""Options of `jaxquard plan`, and the reading of wishes."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.options import complete

PRICERS = ("model", "compile", "measure", "mock-gpu")
LOSS_REDUCTIONS = ("mean", "sum", "weighted", "per_microbatch")

PlanModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|MODULE:LOSS",
        help="A model by name, such as llama3:405b or gpt3:175b; one of the zoo, such as gpt-tiny; a function that "
        "returns (loss, optimizer, (params, batch)); or a loss whose module has an optimizer and args. A module may be "
        "a file: train.py:loss.",
    ),
]
PlanClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME|FILE.toml",
        help="The hardware: a preset with its shape, such as h100-8x4 (4 hosts of 8 chips); or a file.",
        show_default="the devices here",
    ),
]
GlobalBatchOption = Annotated[
    int | None,
    typer.Option(
        "--global-batch",
        metavar="N",
        min=1,
        help="Rows of the batch of a step. A function gets it as batch_size.",
        show_default="256, or a row for 8 chips",
    ),
]
SequenceOption = Annotated[
    int | None,
    typer.Option("--sequence-length", metavar="N", min=1, help="Tokens of a row.", show_default="as the model has it"),
]
ScaleOption = Annotated[
    int,
    typer.Option(
        "--scale",
        metavar="N",
        min=1,
        help="Divide all sizes of a model, so that one of its shape runs here: without --cluster, on these devices.",
    ),
]
FixOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fix",
        metavar="NAME=VALUE",
        help="What the plan must have; may stand several times: schedule=1f1b, stages=8, microbatches=16, "
        "recompute=full, 'storage=zero 1', model=4 (an axis), 'layers.*.mlp=columns' (parameters), model.py:41=rows "
        "(a line).",
    ),
]
ForbidOption = Annotated[
    list[str] | None,
    typer.Option(
        "--forbid", metavar="NAME=VALUE", help="What it must not have; as --fix, and several values of one name."
    ),
]
LossReductionOption = Annotated[
    str | None,
    typer.Option(
        "--loss-reduction",
        metavar="NAME",
        autocompletion=complete(*LOSS_REDUCTIONS),
        help="Of a loss: weighted if it returns (sum, weight); per_microbatch for the mean of the losses of "
        "microbatches, each on its own; mean or sum to be sure that it is one.",
        show_default="read from the loss",
    ),
]
IgnoreMarksOption = Annotated[
    bool,
    typer.Option("--ignore-marks", help="Of a loss: stages may begin elsewhere than at the marks of its code."),
]
MaxMicrobatchOption = Annotated[
    int | None,
    typer.Option("--max-microbatch", metavar="N", min=1, help="The most rows in one microbatch.", show_default="any"),
]
TimeBudgetOption = Annotated[
    float | None,
    typer.Option(
        "--time-budget",
        metavar="SECONDS",
        min=0,
        help="Time for the search; the plan says what it leaves out.",
        show_default="none",
    ),
]
WholeTasksOption = Annotated[
    int | None,
    typer.Option(
        "--whole-tasks",
        metavar="N",
        min=0,
        help="Of a loss: so many of the best plans, and the usual ones, have their tasks priced whole.",
        show_default="0",
    ),
]
PlanPricerOption = Annotated[
    str | None,
    typer.Option(
        "--pricer",
        metavar="NAME",
        autocompletion=complete(*PRICERS),
        help="model computes prices in closed form; compile asks the compiler of --cluster for the best of them; "
        "measure runs these on the devices here; "
        "mock-gpu has one GPU here stand in for those of --cluster.",
        show_default="model",
    ),
]


def parse_fixed(words: Sequence[str] | None) -> dict[str, Any]:
    """Reads `--fix`: a value for each name."""
    fixed: dict[str, Any] = {}
    for name, value in _pairs(words, "--fix"):
        if name in fixed:
            raise UsageError(f"--fix gives {name} twice: {fixed[name]} and {value}. Leave one out.")
        fixed[name] = value
    return fixed


def parse_forbidden(words: Sequence[str] | None) -> dict[str, list[Any]]:
    """Reads `--forbid`: several values for a name."""
    forbidden: dict[str, list[Any]] = {}
    for name, value in _pairs(words, "--forbid"):
        forbidden.setdefault(name, []).append(value)
    return forbidden


def _pairs(words: Sequence[str] | None, option: str) -> list[tuple[str, Any]]:
    pairs = []
    for word in words or ():
        name, equals, value = (part.strip() for part in word.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{option} should be NAME=VALUE, such as schedule=1f1b, but is {word!r}.")
        pairs.append((name, _mesh(value, option) if name == "mesh" else value))
    return pairs


def _mesh(text: str, option: str) -> dict[str, int]:
    """Reads `data=4,model=2`."""
    pairs = [word.partition("=") for word in text.replace(" x ", ",").split(",")]
    sizes = {name.strip(): size.strip() for name, _, size in pairs}
    if not all(name and size.isdecimal() and len(size) < 10 for name, size in sizes.items()):
        raise UsageError(f"{option} mesh={text} should be sizes by axis, such as mesh=data=4,model=2.")
    return {name: int(size) for name, size in sizes.items()}
