"""The numbers of a reproduction as JSON."""

from typing import Any

from jaxquard.evaluate.common import results_file
from jaxquard.evaluate.meshslice.claims import check_claims
from jaxquard.evaluate.meshslice.figures.layer_communication import mean_error
from jaxquard.evaluate.meshslice.headlines import BandedHeadline
from jaxquard.evaluate.meshslice.reproduce import Reproduction
from jaxquard.ir.codec import to_data

SCHEMA = "jaxquard.reproduce.meshslice"
VERSION = 1


def results_text(results: Reproduction) -> str:
    """JSON with a schema's name and version; shares are from 0 to 1, headlines in the paper's unit."""
    content = {
        "headlines": [_headline(headline) for headline in results.headlines],
        "figure_9": _rows(results.weak_scaling),
        "figure_10": _rows(results.communication),
        "figure_11": _rows(results.product_shapes),
        "figure_12": _rows(results.strong_scaling),
        "figure_13": _rows(results.mesh_shapes),
        "figure_14": _rows(results.slice_counts),
        "figure_15": {
            "layers": _rows(results.layer_communication),
            "mean_error": mean_error(results.layer_communication),
        },
        "table_2": _rows(results.dataflow_table),
        "table_3": _rows(results.real_mesh),
        "section_7": _rows(results.three_dimensions),
        "beyond_the_paper": _rows(results.beyond),
        "what_runs": _rows(results.what_runs),
        "readings": _rows(results.readings),
        "other_sendrecvs": _rows(results.other_sendrecvs),
        "claims": {
            "both ways, a launch each": _rows(check_claims(results)),
            **{figures.sendrecv: _rows(check_claims(results, figures)) for figures in results.other_sendrecvs},
        },
    }
    return results_file.results_text(SCHEMA, VERSION, content)


def _headline(headline: BandedHeadline) -> dict[str, Any]:
    return {
        "key": headline.paper.key,
        "title": headline.paper.title,
        "section": headline.paper.section,
        "unit": headline.paper.unit,
        "paper": headline.paper.value,
        "ours": headline.ours,
        "band": list(headline.band),
        "band_sets": list(headline.band_sets),
        "fitted": list(headline.fitted),
        "by_set": headline.by_set,
        "verdict": headline.verdict.text,
        "why": headline.paper.why,
    }


def _rows(rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [to_data(row) for row in rows]
