"""`jaxquard reproduce`: redoes the evaluation of a paper, as a page and as numbers."""

import time
from pathlib import Path
from typing import Annotated

import typer

from jaxquard.cli.exit_codes import UsageError, print_message
from jaxquard.cli.options import JsonOption, choose_name, complete

PAPERS = ("meshslice", "cfp", "jaxpp", "published")


def reproduce(
    paper: Annotated[
        str, typer.Argument(metavar="PAPER", autocompletion=complete(*PAPERS), help=f"One of {', '.join(PAPERS)}.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder for the page, PAPER.html, and its numbers, PAPER.json (cfp-quick.* with --quick, "
            "cfp-CLUSTER.* with --cluster); made if it is not there. The numbers of cfp are written after every cell, "
            "and what is in them is not run again.",
        ),
    ] = Path(),
    quick: Annotated[
        bool, typer.Option("--quick", help="cfp: tiny models and few strategies, in minutes, to see how it looks.")
    ] = False,
    drawn: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE.json", help="cfp: draw an earlier run, and measure nothing."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="cfp: only some of gpt, bert, llama, moe.",
            show_default="all; all but bert with --quick",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="cfp: where prices are kept.", show_default="~/.cache/jaxquard/prices"),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="cfp: price the paper's own sizes for a cluster by its compiler, and run nothing: a100-pcie-8, "
            "a100-pcie-4 and v100-nvlink, as in the paper, a100-pcie-8x2 for its two nodes, or any other.",
            show_default="measure small models on 8 virtual CPU devices",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="published: a file of published steps, bubbles or memory, with the columns of jaxquard's own.",
            show_default="jaxquard's own three",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Redoes a paper's figures, tables and headlines, and says which of them reproduce.

    meshslice and jaxpp take seconds. cfp measures for a long while on 8 virtual CPU devices, and goes on where it was
    stopped; with --cluster it compiles for about an hour. CUDA 13 does not compile for a V100, so its programs are
    compiled for compute capability 7.5, and take their seconds from a V100's figures. published prices the training
    steps that many papers and projects report by the model pricer, in seconds.

    Example: jaxquard reproduce meshslice --out results

    Example: jaxquard reproduce published --data steps.csv --json

    Example: jaxquard reproduce cfp --out results --quick

    Example: jaxquard reproduce cfp --cluster a100-pcie-8 --models gpt
    """
    name = choose_name(paper, PAPERS, kind="paper")
    given = {"--quick": quick, "--from": drawn, "--models": models, "--cache": cache, "--cluster": cluster}
    wrong = [option for option, value in given.items() if value]
    if name != "cfp" and wrong:
        raise UsageError(f"{' and '.join(wrong)} can only be given with cfp. Leave out what is not for {name}.")
    if name != "published" and data:
        raise UsageError(f"--data can only be given with published. Leave it out for {name}.")
    start_s = time.perf_counter()
    _make_folder(out)
    if name == "meshslice":
        from jaxquard.cli.reproduce.meshslice import reproduce_meshslice_paper

        reproduce_meshslice_paper(out, as_json=as_json)
    elif name == "jaxpp":
        from jaxquard.cli.reproduce.jaxpp import reproduce_jaxpp_paper

        reproduce_jaxpp_paper(out, as_json=as_json)
    elif name == "published":
        from jaxquard.cli.reproduce.published import reproduce_published_figures

        reproduce_published_figures(out, data=data, as_json=as_json)
    else:
        from jaxquard.cli.reproduce.cfp import reproduce_cfp_paper

        reproduce_cfp_paper(
            out, is_quick=quick, drawn=drawn, models=models, cache=cache, cluster=cluster, as_json=as_json
        )
    print_message(f"took {time.perf_counter() - start_s:.0f} s")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"cannot make the folder {folder} ({reason}). Give --out a folder that can be written."
        ) from None
