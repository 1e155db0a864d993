"""Prints the headlines of a paper as a table: its number, ours, the band of ours, the verdict."""

from collections.abc import Sequence

from rich.table import Table

from jaxquard.cli.console import make_console, print_line
from jaxquard.evaluate.common.headlines import Headline, in_unit, span_in_unit, verdict_counts
from jaxquard.evaluate.common.verdicts import Grade, Verdict

_STYLES = {Grade.GOOD: "green", Grade.FAIR: "yellow", Grade.POOR: "red"}


def print_headlines(
    headlines: Sequence[Headline], *, bands: Sequence[tuple[float, float]], verdicts: Sequence[Verdict]
) -> None:
    """Prints the table, and how many headlines have each verdict.

    Args:
        bands: of our numbers, one for each headline.
    """
    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("headline", overflow="fold")
    for name in ("paper", "ours", "band"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for headline, band in zip(headlines, bands, strict=True):
        unit = headline.paper.unit
        table.add_row(
            headline.paper.title,
            in_unit(headline.paper.value, unit),
            in_unit(headline.ours, unit),
            span_in_unit(band, unit),
            f"[{_STYLES[headline.verdict.grade]}]{headline.verdict.text}",
        )
    console.print(table)
    print_line(console, f"{verdict_counts(headlines, verdicts)}. The page says why.")
