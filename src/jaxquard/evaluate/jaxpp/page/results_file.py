"""The numbers of a reproduction as JSON."""

from typing import Any

from jaxquard.evaluate.common import results_file
from jaxquard.evaluate.jaxpp.claims import check_claims
from jaxquard.evaluate.jaxpp.headlines import OpenHeadline
from jaxquard.evaluate.jaxpp.reproduce import JaxppReproduction
from jaxquard.ir.codec import to_data

SCHEMA = "jaxquard.reproduce.jaxpp"
VERSION = 1


def results_text(results: JaxppReproduction) -> str:
    """JSON with a schema's name and version; shares are from 0 to 1, headlines in the paper's unit."""
    content = {
        "headlines": [_headline(headline) for headline in results.headlines],
        "table_1": _rows(results.table_1),
        "figure_6": _rows(results.send_orders),
        "figure_7": _rows(results.circular_repeats),
        "figure_8": _rows(results.microbatch_counts),
        "figure_9": _rows(results.weak_scaling),
        "figure_11": to_data(results.breakdown),
        "kept_activations": _rows(results.kept_activations),
        "claims": _rows(check_claims(results)),
    }
    return results_file.results_text(SCHEMA, VERSION, content)


def _headline(headline: OpenHeadline) -> dict[str, Any]:
    return {
        "key": headline.paper.key,
        "title": headline.paper.title,
        "section": headline.paper.section,
        "unit": headline.paper.unit,
        "paper": headline.paper.value,
        "ours": headline.ours,
        "band": list(headline.band),
        "band_assumptions": list(headline.band_assumptions),
        "by_assumptions": headline.by_assumptions,
        "verdict": headline.verdict.text,
        "why": headline.paper.why,
    }


def _rows(rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [to_data(row) for row in rows]
