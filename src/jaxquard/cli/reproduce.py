"""`jaxquard reproduce`: redoes the evaluation of a paper, as a page and as numbers."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jaxquard.cli.reproduce_cfp import reproduce_cfp_paper
from jaxquard.cli.reproduce_meshslice import reproduce_meshslice_paper
from jaxquard.errors import JaxquardError

PAPERS = ("meshslice", "cfp")


def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help=f"One of {', '.join(PAPERS)}.")],
    out: Annotated[
        Path, typer.Option(help="Folder for the page, PAPER.html, or cfp-quick.html; made if it is not there.")
    ] = Path(),
    json: Annotated[
        Path | None,
        typer.Option(
            help="Also write the numbers to this JSON file. For cfp it is written after every cell, and what is in it "
            "is not run again.",
            show_default="for cfp OUT/cfp.json, or OUT/cfp-quick.json",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="cfp: tiny models and few strategies, in minutes, to see how it looks.")
    ] = False,
    drawn: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="cfp: draw an earlier run, and measure nothing.")
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="cfp: only some of gpt, bert, llama, moe.",
            show_default="all; but for bert with --quick",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="cfp: where prices are kept.", show_default="~/.cache/jaxquard/prices"),
    ] = None,
) -> None:
    """Redoes a paper's figures, tables and headlines, and says which of them reproduce.

    meshslice takes seconds. cfp measures for a long while on 8 virtual CPU devices, and goes on where it was stopped.

    Example: [bold]jaxquard reproduce meshslice --out results --json results/meshslice.json[/bold]

    Example: [bold]jaxquard reproduce cfp --out results --quick[/bold]
    """
    if paper not in PAPERS:
        raise JaxquardError(f"no paper is called {paper!r}. Use one of: {', '.join(PAPERS)}.")
    given = {"--quick": quick, "--from": drawn, "--models": models, "--cache": cache}
    wrong = [option for option, value in given.items() if value]
    if paper == "meshslice" and wrong:
        raise JaxquardError(f"{' and '.join(wrong)} can only be given with cfp. Leave out what is not for meshslice.")
    start_s = time.perf_counter()
    _make_folder(out)
    if paper == "meshslice":
        reproduce_meshslice_paper(out, json)
    else:
        reproduce_cfp_paper(out, json, is_quick=quick, drawn=drawn, models=models, cache=cache)
    took_s = time.perf_counter() - start_s
    Console(stderr=True, highlight=False).print(f"took {took_s:.0f} s", markup=False)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JaxquardError(
            f"cannot make the folder {folder} ({error.strerror}). Give --out a folder that can be written."
        ) from None
