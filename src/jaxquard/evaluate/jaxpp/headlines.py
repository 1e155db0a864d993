"""The paper's headlines beside ours, with a band over what the paper leaves open, and a verdict.

Ours is of the nominal assumptions. Verdicts:

    reproduces           ours is within 10 % of the paper's number, or, if it is a share, within one point
    within band          it is not, but the paper's number lies in the band
    does not reproduce   neither
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxquard.evaluate.common.headlines import Headline
from jaxquard.evaluate.common.paper import PaperHeadline
from jaxquard.evaluate.common.verdicts import Grade, Verdict
from jaxquard.evaluate.jaxpp.figures.breakdown import break_down
from jaxquard.evaluate.jaxpp.figures.table_1 import setup_of_row
from jaxquard.evaluate.jaxpp.figures.weak_scaling import efficiency, scale_weakly
from jaxquard.evaluate.jaxpp.paper import JaxppPaper
from jaxquard.evaluate.jaxpp.setup.assumptions import Assumptions
from jaxquard.evaluate.jaxpp.setup.simulate_step import SPMD, StepSimulator

TOLERANCE = 0.1
TOLERANCE_POINTS = 1.0
REPRODUCES = Verdict("reproduces", "reproduce", Grade.GOOD)
WITHIN_BAND = Verdict("within band", "lie within the band", Grade.FAIR)
DOES_NOT = Verdict("does not reproduce", "do not reproduce", Grade.POOR)
VERDICTS = (REPRODUCES, WITHIN_BAND, DOES_NOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHeadline(Headline):
    """A headline with a band over what the paper leaves open.

    Attributes:
        band: the minimum and the maximum over all assumptions.
        band_assumptions: those that give the minimum, and the maximum; the first that do.
        by_assumptions: ours, for each of them by its label.
    """

    ours: float
    band: tuple[float, float]
    band_assumptions: tuple[str, str]
    by_assumptions: dict[str, float]

    @property
    def verdict(self) -> Verdict:
        apart = abs(self.ours - self.paper.value)
        if apart <= TOLERANCE * self.paper.value or (self.paper.unit == "%" and apart <= TOLERANCE_POINTS):
            return REPRODUCES
        low, high = self.band
        return WITHIN_BAND if low <= self.paper.value <= high else DOES_NOT


def headlines(
    simulator: StepSimulator,
    paper: JaxppPaper,
    assumptions: Sequence[Assumptions],
    *,
    on_progress: Callable[[str], None] = lambda name: None,
) -> tuple[OpenHeadline, ...]:
    """All of the paper's, in its order; ours are of the first assumptions."""
    values = {}
    for one in assumptions:
        on_progress(one.label)
        values[one.label] = headline_numbers(simulator, paper, one)
    return tuple(_headline(claim, values) for claim in paper.headlines)


def headline_numbers(simulator: StepSimulator, paper: JaxppPaper, assumptions: Assumptions) -> dict[str, float]:
    """Every headline under some assumptions, by its key."""

    def time_s(system: str, model: str = "GPT3-175B") -> float:
        return simulator.step(setup_of_row(paper.row(system, model), assumptions)).step_time_s

    points = scale_weakly(simulator, paper, assumptions)
    jaxpp_s, llama2_s = time_s("JaxPP"), time_s("JaxPP", "Llama2-70B")
    return {
        "step_gpt3": jaxpp_s,
        "step_llama2": llama2_s,
        "step_spmd": time_s(SPMD),
        "step_fsdp": time_s("JAX FSDP"),
        "step_nemo": time_s("NeMo"),
        "over_spmd": 100 * (time_s(SPMD) / jaxpp_s - 1),
        "over_fsdp": time_s("JAX FSDP") / jaxpp_s,
        "over_fsdp_llama2": time_s("JAX FSDP", "Llama2-70B") / llama2_s,
        "of_nemo": 100 * time_s("NeMo") / jaxpp_s,
        "of_nemo_llama2": 100 * time_s("NeMo", "Llama2-70B") / llama2_s,
        "scaling_jaxpp": 100 * (1 - efficiency(points, "JaxPP", first=128)),
        "scaling_fsdp": 100 * (1 - efficiency(points, "JAX FSDP", first=64)),
        "rematerialisation": 100 * break_down(simulator, paper, assumptions).recompute_share,
    }


def _headline(claim: PaperHeadline, values: dict[str, dict[str, float]]) -> OpenHeadline:
    found = {label: numbers[claim.key] for label, numbers in values.items()}
    low, high = (end(found, key=found.__getitem__) for end in (min, max))
    return OpenHeadline(
        paper=claim,
        ours=next(iter(found.values())),
        band=(found[low], found[high]),
        band_assumptions=(low, high),
        by_assumptions=found,
    )
