"""`jaxquard reproduce cfp`: runs the cells that are left, or prices them for a cluster, and draws what there is."""

import json
import re
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jaxquard.cli.cluster.show import find_cluster
from jaxquard.cli.console import check_writable, make_console, print_json, print_line, write_file
from jaxquard.cli.devices import prepare_devices, start_mesh
from jaxquard.cli.exit_codes import UsageError, print_message
from jaxquard.cli.interrupt import ends_with
from jaxquard.cli.shard.options import choose_cache
from jaxquard.cli.shard.target_mesh import start_for_target
from jaxquard.cluster import Cluster
from jaxquard.evaluate.cfp import (
    Results,
    cfp_page,
    read_results,
    reproduce_cfp,
    results_text,
    without_quick_cells,
)
from jaxquard.evaluate.cfp.cells.cell import Cell
from jaxquard.evaluate.cfp.cells.grid import MODELS
from jaxquard.evaluate.cfp.headlines import NOT_RUN, VERDICTS, headlines
from jaxquard.evaluate.common.headlines import in_unit, verdict_counts
from jaxquard.evaluate.common.verdicts import Grade
from jaxquard.pricing import PriceCache
from jaxquard.progress import ProgressBars

NUM_DEVICES = 8
_STYLES = {Grade.GOOD: "green", Grade.FAIR: "yellow", Grade.POOR: "red"}


def reproduce_cfp_paper(
    out: Path,
    *,
    is_quick: bool,
    drawn: Path | None,
    models: str | None,
    cache: Path | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Measures, prices for a cluster, or reads an earlier run; writes the page and prints the headlines."""
    given = {"--quick": is_quick, "--models": models, "--cache": cache, "--cluster": cluster}
    wrong = [option for option, value in given.items() if value]
    if drawn is not None and wrong:
        raise UsageError(f"--from draws an earlier run and measures nothing. Leave out {' and '.join(wrong)}.")
    if drawn is not None:
        results = without_quick_cells(read_results(drawn))
        page = out / f"{_stem(results)}.html"
        check_writable(page)
    else:
        wanted, target = _models(models), None if cluster is None else find_cluster(cluster)
        stem = _name(None if target is None else target.name, is_quick=is_quick)
        page, path = out / f"{stem}.html", out / f"{stem}.json"
        check_writable(page, path)
        kept = choose_cache(cache, no_cache=False)
        results = _run(path, is_quick=is_quick, models=wanted, cache=kept, cluster=target)
    write_file(page, cfp_page(results))
    if as_json:
        print_json(json.loads(results_text(results)))
    else:
        _print(results)


def _stem(results: Results) -> str:
    """Returns the name of an earlier run's page, as that run has named it."""
    is_quick = any(cell.spec.is_thin for cell in results.cells)
    return _name(results.cluster, is_quick=is_quick)


def _name(cluster: str | None, *, is_quick: bool) -> str:
    """Returns `cfp-a100-pcie-8-quick`: runs of other clusters, and quick ones, have files of their own."""
    words = ["cfp"] if cluster is None else ["cfp", re.sub(r"[^\w.-]+", "-", cluster)]
    return "-".join([*words, "quick"] if is_quick else words)


def _run(
    path: Path, *, is_quick: bool, models: tuple[str, ...] | None, cache: PriceCache | None, cluster: Cluster | None
) -> Results:
    if cluster is None:
        prepare_devices(cpu=True, num_devices=NUM_DEVICES, sizes=None)
        start_mesh(None, num_devices=NUM_DEVICES)
    else:
        start_for_target()
    if path.exists():
        read_results(path)
    kept = f"Finished cells are kept in {path}, and the same command goes on from there."
    with ends_with(kept), ProgressBars() as bars:
        cells, part = bars.add("cells", name="starting"), bars.add("this cell", name="starting")

        def on_part(label: str, done: int, total: int, name: str) -> None:
            part(done, total, f"{label}: {name}" if name else label)

        return reproduce_cfp(
            models=models,
            is_quick=is_quick,
            path=path,
            cache=cache,
            cluster=cluster,
            on_cell=lambda done, total, name: cells(done, total, name),
            on_part=on_part,
            on_done=_say_done,
        )


def _say_done(cell: Cell) -> None:
    """Prints a line a cell, where no bar shows it."""
    if not Console(stderr=True).is_terminal:
        best = cell.best
        priced = "" if cell.cluster is None else f", priced for {cell.cluster}"
        found = f"{best.whole_s * 1e3:.1f} ms{priced}" if best is not None and best.whole_s is not None else None
        found = found or cell.failure or (best.failure if best is not None else None) or "the chosen plan did not run"
        print_message(f"{cell.spec.name}: {found}")


def _models(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(word.strip() for word in text.split(","))
    for name in names:
        if name not in MODELS:
            raise UsageError(f"--models has {name!r}, which is no model here. Use {', '.join(MODELS)}.")
    return names


def _print(results: Results) -> None:
    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("headline", overflow="fold")
    for name in ("paper", "ours"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for headline in headlines(results):
        unit = headline.paper.unit
        table.add_row(
            headline.paper.title,
            in_unit(headline.paper.value, unit),
            in_unit(headline.ours, unit),
            f"[{'dim' if headline.verdict is NOT_RUN else _STYLES[headline.verdict.grade]}]{headline.verdict.text}",
        )
    console.print(table)
    print_line(console, f"{verdict_counts(headlines(results), VERDICTS)}. The page says what can be compared.")
