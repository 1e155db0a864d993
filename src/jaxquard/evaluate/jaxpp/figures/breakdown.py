"""Figure 11: what the SPMD pipeline spends more than JaxPP, one difference after the other (section 5.3).

From the SPMD pipeline's step we take away, in this order: its synchronous sends, then its recomputation (as if all
fitted the memory); what is left to JaxPP's step is its schedule, its smaller microbatches and its tensor parallelism.
"""

from dataclasses import dataclass, replace

from jaxquard.evaluate.jaxpp.figures.table_1 import setup_of_row
from jaxquard.evaluate.jaxpp.paper import JaxppPaper
from jaxquard.evaluate.jaxpp.setup.assumptions import Assumptions
from jaxquard.evaluate.jaxpp.setup.simulate_step import SPMD, StepSimulator


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadBreakdown:
    """The seconds of the SPMD pipeline's step, by what they go to beyond JaxPP's."""

    jaxpp_s: float
    sends_s: float
    recompute_s: float
    rest_s: float

    @property
    def spmd_s(self) -> float:
        return self.jaxpp_s + self.sends_s + self.recompute_s + self.rest_s

    @property
    def recompute_share(self) -> float:
        """The share of the SPMD pipeline's step that goes to recomputation."""
        return self.recompute_s / self.spmd_s


def break_down(simulator: StepSimulator, paper: JaxppPaper, assumptions: Assumptions) -> OverheadBreakdown:
    """Simulates the SPMD pipeline with and without each difference."""
    spmd = setup_of_row(paper.row(SPMD), assumptions)
    whole_s = simulator.step(spmd).step_time_s
    asynchronous = replace(spmd, has_synchronous_sends=False)
    overlapped_s = simulator.step(asynchronous).step_time_s
    kept_s = simulator.step(replace(asynchronous, recompute_share=0.0)).step_time_s
    jaxpp_s = simulator.step(setup_of_row(paper.row("JaxPP"), assumptions)).step_time_s
    return OverheadBreakdown(
        jaxpp_s=jaxpp_s,
        sends_s=whole_s - overlapped_s,
        recompute_s=overlapped_s - kept_s,
        rest_s=kept_s - jaxpp_s,
    )
