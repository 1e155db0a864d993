"""`jaxquard reproduce jaxpp`."""

import json
from pathlib import Path

from rich.table import Table

from jaxquard.cli.console import check_writable, make_console, print_json, print_line, write_file
from jaxquard.cli.progress import ProgressBars
from jaxquard.evaluate.common.headlines import in_unit, span_in_unit, verdict_counts
from jaxquard.evaluate.common.verdicts import Grade
from jaxquard.evaluate.jaxpp import JaxppReproduction, jaxpp_page, reproduce_jaxpp, results_text
from jaxquard.evaluate.jaxpp.headlines import VERDICTS

_STYLES = {Grade.GOOD: "green", Grade.FAIR: "yellow", Grade.POOR: "red"}


def reproduce_jaxpp_paper(out: Path, *, as_json: bool) -> None:
    """Simulates, writes the page and the numbers, and prints the headlines."""
    page, numbers = out / "jaxpp.html", out / "jaxpp.json"
    check_writable(page, numbers)
    with ProgressBars() as bars:
        results = reproduce_jaxpp(on_progress=bars.add("JaxPP", name="Figure 6"))
    write_file(page, jaxpp_page(results))
    write_file(numbers, results_text(results))
    if as_json:
        print_json(json.loads(results_text(results)))
    else:
        _print(results)


def _print(results: JaxppReproduction) -> None:
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
            f"[{_STYLES[headline.verdict.grade]}]{headline.verdict.text}",
        )
    console.print(table)
    print_line(console, f"{verdict_counts(results.headlines, VERDICTS)}. The page says why.")
