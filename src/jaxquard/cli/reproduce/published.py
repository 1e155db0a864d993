"""`jaxquard reproduce published`."""

from pathlib import Path

from rich.table import Table

from jaxquard.cli.console import check_writable, make_console, print_json, print_line, write_file
from jaxquard.evaluate.published.judge_rows import judge_file
from jaxquard.evaluate.published.page import published_page, published_text
from jaxquard.evaluate.published.results import PublishedResults, summarise_errors
from jaxquard.evaluate.published.rows import DataKind, own_files, read_published
from jaxquard.progress import ProgressBars

_GROUPS = {DataKind.STEPS: "framework", DataKind.BUBBLES: "schedule", DataKind.MEMORY: "quantity"}


def reproduce_published_figures(out: Path, *, data: Path | None, as_json: bool) -> None:
    """Judges the rows, writes the page and the numbers, and prints a summary."""
    files = (read_published(data),) if data else own_files()
    page, numbers = out / "published.html", out / "published.json"
    check_writable(page, numbers)
    with ProgressBars() as bars:
        results = [judge_file(file, on_progress=bars.add(file.name, name=file.kind.value)) for file in files]
    write_file(page, published_page(results))
    write_file(numbers, published_text(results))
    if as_json:
        # Steps are the figures in question; a file that the user gives is judged whatever its kind.
        print_json(summarise_errors(results[0]))
    else:
        for one in results:
            _print(one)


def _print(results: PublishedResults) -> None:
    console = make_console()
    unit = "points" if results.kind is DataKind.BUBBLES else "%"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(_GROUPS[results.kind])
    for name in ("rows", f"median error, {unit}", f"worst, {unit}"):
        table.add_column(name, justify="right", no_wrap=True)
    for group, summary in summarise_errors(results)["by_system"].items():
        median, worst = (f"{100 * summary[key]:.2g}" for key in ("median_error", "worst_error"))
        table.add_row(group, str(summary["rows"]), median, worst)
    print_line(console, f"{results.file}: {_totals(results, unit)}")
    console.print(table)
    for row in results.skipped:
        print_line(console, f"skipped {row.name}: {row.reason}")


def _totals(results: PublishedResults, unit: str) -> str:
    summary = summarise_errors(results)
    if not results.rows:
        return f"all {summary['rows']} rows are skipped"
    median, mean = 100 * summary["median_error"], 100 * summary["mean_error"]
    worst = 100 * summary["worst"][0]["error"]
    return (
        f"{summary['rows']} rows, {len(results.skipped)} skipped, median error {median:.2g} {unit}, mean {mean:.2g} "
        f"{unit}, worst {worst:.2g} {unit}"
    )
