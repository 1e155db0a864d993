"""The paper's numbers beside ours. Machines differ, so a verdict is about the kind of finding, not about seconds.

Cells that are priced for one of the paper's clusters stand beside its numbers for that cluster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxquard.evaluate.cfp.cells.cell import Cell
from jaxquard.evaluate.cfp.cells.pick import line_cells
from jaxquard.evaluate.cfp.cells.results_file import Results
from jaxquard.evaluate.cfp.figures.figure_7 import speedups
from jaxquard.evaluate.cfp.figures.figure_8 import figure_8
from jaxquard.evaluate.cfp.figures.figure_9 import alike_apart, figure_9
from jaxquard.evaluate.cfp.figures.figure_10 import SUM, figure_10
from jaxquard.evaluate.common.headlines import Headline
from jaxquard.evaluate.common.paper import PaperHeadline, paper_headlines, read_paper
from jaxquard.evaluate.common.verdicts import Grade, Verdict

# A ratio counts as different from 1 beyond this, which is about what runs wander by.
MARGIN = 0.03
# As large as the paper's: at least this part of what its ratio lies above 1.
AS_LARGE = 0.8


AS_IN_PAPER = Verdict("as in the paper", "come out as in the paper", Grade.GOOD)
IN_KIND = Verdict("in kind, but less", "in kind but less", Grade.FAIR)
NOT_HERE = Verdict("not here", "not here", Grade.POOR)
NOT_RUN = Verdict("not run", "were not run", Grade.FAIR)
VERDICTS = (AS_IN_PAPER, IN_KIND, NOT_HERE, NOT_RUN)


@dataclass(frozen=True, slots=True, kw_only=True)
class CfpHeadline(Headline):
    """A headline with the verdict by its unit; our number is None where the cells that it needs were not run."""

    @property
    def verdict(self) -> Verdict:
        return NOT_RUN if self.ours is None else _RULES[self.paper.unit](self.ours, self.paper.value)


def headlines(results: Results) -> tuple[CfpHeadline, ...]:
    """All of the paper's, or those that it has for the cluster of the cells, in the order of the file."""
    values = _values(results)
    return tuple(CfpHeadline(paper=one, ours=values[one.key]) for one in paper_numbers(results.cluster))


def paper_numbers(cluster: str | None) -> tuple[PaperHeadline, ...]:
    """Returns the paper's headlines for a cluster; None for those of its A100s, explained for cells measured here."""
    content = read_paper("jaxquard.evaluate.cfp")
    if cluster is None:
        return paper_headlines(content)
    known = {one["key"]: one for one in content["headlines"]}
    for found in content["clusters"]:
        if cluster == found["name"] or (cluster.startswith(f"{found['name']}-") and not found["has_others"]):
            changed = {one["key"]: known.get(one["key"], {}) | one for one in found["headlines"]}
            known = known | changed if found["has_others"] else changed
    return tuple(
        replace(one, why=one.why_priced or one.why) for one in paper_headlines({"headlines": list(known.values())})
    )


def _ratio(ours: float, paper: float) -> Verdict:
    if ours - 1 >= AS_LARGE * (paper - 1):
        return AS_IN_PAPER
    return IN_KIND if ours > 1 + MARGIN else NOT_HERE


def _ratio_below(ours: float, paper: float) -> Verdict:
    if 1 - ours >= AS_LARGE * (1 - paper):
        return AS_IN_PAPER
    return IN_KIND if ours < 1 - MARGIN else NOT_HERE


def _at_most(ours: float, paper: float) -> Verdict:
    return AS_IN_PAPER if ours <= paper else NOT_HERE


_RULES: dict[str, Callable[[float, float], Verdict]] = {
    "x": _ratio,
    "x below": _ratio_below,
    "error": _at_most,
    "programs": _at_most,
    "min": _at_most,
}


def _values(results: Results) -> dict[str, float | None]:
    cells = results.cells
    line = line_cells(cells)
    meshes = [cell for cell in cells if len(cell.spec.mesh) > 1]

    def of(model: str) -> list[Cell]:
        return [cell for cell in line if cell.spec.model == model]

    by_volume = {found.cell.spec.model: found for found in figure_9(cells)}
    sums = {found.cell.spec.model: found.rmse for found in figure_10(line) if found.way == SUM}
    searched = [cell for cell in cells if cell.is_measured_anew]
    return {
        "over_alpa_mean": speedups(line, "volume").mean,
        "over_alpa_meshes": speedups(meshes, "volume").mean,
        "over_alpa_gpt": speedups(of("gpt"), "volume").most,
        "over_alpa_llama": speedups(of("llama"), "volume").most,
        "over_alpa_moe": speedups(of("moe"), "volume").most,
        "over_alpa_moe_mean": speedups(of("moe"), "volume").mean,
        "fastest_volume_moe": by_volume["moe"].fastest_volume if "moe" in by_volume else None,
        "alike_apart_bert": alike_apart(by_volume["bert"]) if "bert" in by_volume else None,
        "alpa_communication_moe": _communication_ratio(cells, "moe", "volume", "chosen"),
        "data_over_tensor": _communication_ratio(cells, "gpt", "data parallel", "megatron"),
        "over_data_mean": speedups(line, "data parallel").mean,
        "over_megatron_mean": speedups(line, "megatron").mean,
        "rmse": sums.get("gpt"),
        "num_programs": max((cell.num_programs for cell in of("gpt") if not cell.spec.is_thin), default=None),
        "search_minutes": max((cell.seconds.searched / 60 for cell in searched), default=None),
    }


def _communication_ratio(cells: Sequence[Cell], model: str, one: str, other: str) -> float | None:
    known = {sent.plan: sent.communication_s for sent in figure_8(cells) if sent.model == model}
    return known[one] / known[other] if one in known and known.get(other) else None
