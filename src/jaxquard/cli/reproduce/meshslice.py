"""`jaxquard reproduce meshslice`."""

import json
from pathlib import Path

from jaxquard.cli.console import check_writable, print_json, write_file
from jaxquard.cli.reproduce.print_headlines import print_headlines
from jaxquard.evaluate.meshslice import meshslice_page, reproduce_meshslice, results_text
from jaxquard.evaluate.meshslice.headlines import VERDICTS
from jaxquard.progress import ProgressBars


def reproduce_meshslice_paper(out: Path, *, as_json: bool) -> None:
    """Computes, writes the page and the numbers, and prints the headlines."""
    page, numbers = out / "meshslice.html", out / "meshslice.json"
    check_writable(page, numbers)
    with ProgressBars() as bars:
        results = reproduce_meshslice(on_progress=bars.add("MeshSlice", name="Figure 9"))
    write_file(page, meshslice_page(results))
    write_file(numbers, results_text(results))
    if as_json:
        print_json(json.loads(results_text(results)))
    else:
        bands = [headline.band for headline in results.headlines]
        print_headlines(results.headlines, bands=bands, verdicts=VERDICTS)
