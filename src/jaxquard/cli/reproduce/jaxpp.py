"""`jaxquard reproduce jaxpp`."""

import json
from pathlib import Path

from jaxquard.cli.console import check_writable, print_json, write_file
from jaxquard.cli.reproduce.print_headlines import print_headlines
from jaxquard.evaluate.jaxpp import jaxpp_page, reproduce_jaxpp, results_text
from jaxquard.evaluate.jaxpp.headlines import VERDICTS
from jaxquard.progress import ProgressBars


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
        bands = [headline.band for headline in results.headlines]
        print_headlines(results.headlines, bands=bands, verdicts=VERDICTS)
