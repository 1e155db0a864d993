"""`jaxquard reproduce`: redoes the evaluation of a paper, as a page and as numbers."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jaxquard.cli.console import check_writable, make_console, print_line, write_file
from jaxquard.cli.progress import ProgressBars
from jaxquard.errors import JaxquardError
from jaxquard.evaluate.meshslice import Reproduction, meshslice_page, reproduce_meshslice, results_text, verdict_counts
from jaxquard.evaluate.meshslice.headlines import Verdict
from jaxquard.evaluate.meshslice.labels import in_unit, span_in_unit

PAPERS = ("meshslice",)
_STYLES = {Verdict.REPRODUCES: "green", Verdict.WITHIN_BAND: "yellow", Verdict.DOES_NOT: "red"}


def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help=f"One of {', '.join(PAPERS)}.")],
    out: Annotated[Path, typer.Option(help="Folder for the page, PAPER.html; made if it is not there.")] = Path(),
    json: Annotated[Path | None, typer.Option(help="Also write the numbers to this JSON file.")] = None,
) -> None:
    """Redoes a paper's figures, tables and headlines, and says which of them reproduce.

    Example: [bold]jaxquard reproduce meshslice --out results --json results/meshslice.json[/bold]
    """
    if paper not in PAPERS:
        raise JaxquardError(f"no paper is called {paper!r}. Use one of: {', '.join(PAPERS)}.")
    _make_folder(out)
    page = out / f"{paper}.html"
    for path in (page, *([json] if json is not None else [])):
        check_writable(path)
    start_s = time.perf_counter()
    with ProgressBars() as bars:
        results = reproduce_meshslice(on_progress=bars.add("MeshSlice", name="Figure 9"))
    took_s = time.perf_counter() - start_s
    _print(results)
    write_file(page, meshslice_page(results))
    if json is not None:
        write_file(json, results_text(results))
    Console(stderr=True, highlight=False).print(f"took {took_s:.0f} s", markup=False)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JaxquardError(
            f"cannot make the folder {folder} ({error.strerror}). Give --out a folder that can be written."
        ) from None


def _print(results: Reproduction) -> None:
    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("headline", overflow="fold")
    for name in ("paper", "ours", "band"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for headline in results.headlines:
        unit = headline.paper.unit
        table.add_row(
            headline.paper.title,
            in_unit(headline.paper.value, unit),
            in_unit(headline.ours, unit),
            span_in_unit(headline.band, unit),
            f"[{_STYLES[headline.verdict]}]{headline.verdict.value}",
        )
    console.print(table)
    print_line(console, f"{verdict_counts(results)}. The page says why.")
