"""Table 1, all figures and headlines, in one go."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxquard.evaluate.jaxpp.figures.breakdown import OverheadBreakdown, break_down
from jaxquard.evaluate.jaxpp.figures.kept_activations import KeptActivations, count_kept_activations
from jaxquard.evaluate.jaxpp.figures.send_order import SendOrder, compare_send_orders
from jaxquard.evaluate.jaxpp.figures.table_1 import TableStep, redo_table
from jaxquard.evaluate.jaxpp.figures.tradeoffs import TradeoffPoint, circular_repeats, microbatch_counts
from jaxquard.evaluate.jaxpp.figures.weak_scaling import WeakScalingPoint, scale_weakly
from jaxquard.evaluate.jaxpp.headlines import OpenHeadline, headlines
from jaxquard.evaluate.jaxpp.paper import JaxppPaper, load_jaxpp_paper
from jaxquard.evaluate.jaxpp.setup.assumptions import NOMINAL, all_assumptions
from jaxquard.evaluate.jaxpp.setup.simulate_step import StepSimulator


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxppReproduction:
    """The results of `reproduce_jaxpp`, in the order of the paper; all but bands under the nominal assumptions."""

    paper: JaxppPaper
    headlines: tuple[OpenHeadline, ...]
    kept_activations: tuple[KeptActivations, ...]
    send_orders: tuple[SendOrder, ...]
    circular_repeats: tuple[TradeoffPoint, ...]
    microbatch_counts: tuple[TradeoffPoint, ...]
    weak_scaling: tuple[WeakScalingPoint, ...]
    table_1: tuple[TableStep, ...]
    breakdown: OverheadBreakdown


def reproduce_jaxpp(
    *, on_progress: Callable[[int, int, str], None] = lambda done, total, name: None
) -> JaxppReproduction:
    """Computes everything; `on_progress` gets the number of parts that are done, of all, and the next one's name."""
    simulator, paper, assumptions = StepSimulator(), load_jaxpp_paper(), all_assumptions()
    total, begun = 5 + len(assumptions), 0

    def begin(name: str) -> None:
        nonlocal begun
        on_progress(begun, total, name)
        begun += 1

    begin("Figure 6")
    orders = compare_send_orders()
    begin("Figure 7")
    repeats = circular_repeats(simulator, NOMINAL)
    begin("Figure 8")
    counts = microbatch_counts(simulator, NOMINAL)
    begin("Figure 9")
    scaling = scale_weakly(simulator, paper, NOMINAL)
    begin("Table 1")
    table = redo_table(simulator, paper, assumptions)
    found = headlines(simulator, paper, assumptions, on_progress=lambda name: begin(f"bands: {name}"))
    on_progress(total, total, "")
    return JaxppReproduction(
        paper=paper,
        headlines=found,
        kept_activations=count_kept_activations(),
        send_orders=orders,
        circular_repeats=repeats,
        microbatch_counts=counts,
        weak_scaling=scaling,
        table_1=table,
        breakdown=break_down(simulator, paper, NOMINAL),
    )
