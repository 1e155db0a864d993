"""The plans that a search is compared with."""

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.layouts import Storage
from jaxquard.intraop.predict import Candidate


def name_baselines(analysis: Analysis) -> list[Candidate]:
    """The baselines, each an assignment to the same blocks."""
    rows = {
        block.number: ("rows" if "rows" in block.names else block.names[0],) * len(analysis.axes)
        for block in analysis.blocks
    }
    return [
        Candidate(name="data parallel", assignment=rows),
        Candidate(name="ZeRO-1", assignment=rows, storage=Storage.ZERO_1),
        Candidate(name="ZeRO-3 (FSDP)", assignment=rows, storage=Storage.ZERO_3),
    ]
