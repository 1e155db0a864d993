"""The plans that a search leaves to choose from, with what is known of their times."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.record.plan import Plan, StagePlan, TimeTerms
from jaxquard.planner.stages.configurations.configuration_search import PlanFinalist

_PARTS = "; its parts in the proportions of: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan to choose from.

    Attributes:
        name: of a usual plan; "" for one of the search.
        costs: of all strategies that were priced on its mesh.
        make_plan: describes it, once: with the time by prices, or, after it has run, the one that it took.
        time_s: the time of that plan.
        price_s: the time by prices, also after it has run.
        is_fine: that price is of a compiler or a measurement, where others may be in closed form.
        is_whole: that price is of whole tasks.
        is_measured: it has run, or was tried.
        note: where its time comes from; "" for prices.
        failure: why it did not run; "" if it ran, or was not tried.
        num_rematerialized: values that the compiler gathered whole when it ran.
        follows_strategies: it has the strategies that the user wishes for; a usual plan need not.
    """

    name: str
    finalist: PlanFinalist = field(repr=False)
    costs: StepCosts = field(repr=False)
    make_plan: Callable[[], Plan] = field(repr=False)
    time_s: float
    price_s: float
    is_fine: bool = False
    is_whole: bool = False
    is_measured: bool = False
    note: str = ""
    failure: str = ""
    num_rematerialized: int = 0
    follows_strategies: bool = True

    @property
    def plan(self) -> Plan:
        """The plan as data."""
        return self.make_plan()

    def with_plan(self, plan: Plan) -> "Candidate":
        """Returns it with another plan."""
        return replace(self, make_plan=lambda: plan, time_s=plan.time_s)

    def with_time(self, time_s: float, *, source: str) -> "Candidate":
        """Returns it with another time of the step, of which its parts keep their shares.

        Args:
            source: where that time comes from.
        """
        plan = self.plan
        scaled = replace(_scale(plan, time_s / plan.time_s), time_s=time_s)
        provenance = f"the step: {source}{_PARTS}{plan.provenance.rpartition(_PARTS)[2]}"
        return self.with_plan(replace(scaled, provenance=provenance))


def finest_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns candidates as they are; or, if only some have fine prices, these first, the fastest of them first."""
    if len({one.is_fine for one in candidates}) < 2:
        return [*candidates]
    return sorted(candidates, key=lambda one: (not one.is_fine, one.time_s))


def scale_others(candidates: Sequence[Candidate], factors: Sequence[float], *, note: str) -> list[Candidate]:
    """Returns candidates with their times scaled as those of others, of which more is known.

    Args:
        factors: what is known of each of the others, over what is known of these; if there are none, times stay.
        note: where the time comes from, with "{factor}" in it.
    """
    if not factors:
        return [*candidates]
    factor = statistics.median(factors)
    noted = note.format(factor=f"{factor:.3g}")
    return [replace(one.with_plan(_scale(one.plan, factor)), note=noted) for one in candidates]


def _scale(plan: Plan, factor: float) -> Plan:
    """Returns a plan that takes so many times as long, all of its parts alike."""
    return replace(
        plan,
        time_s=factor * plan.time_s,
        times=TimeTerms(**{name: factor * getattr(plan.times, name) for name in plan.times.__dataclass_fields__}),
        stages=tuple(_scale_stage(stage, factor) for stage in plan.stages),
        mfu=None if plan.mfu is None else plan.mfu / factor,
    )


def _scale_stage(stage: StagePlan, factor: float) -> StagePlan:
    exposed_s = None if stage.communication_s is None else factor * stage.communication_s
    return replace(
        stage,
        forward_s=factor * stage.forward_s,
        backward_s=factor * stage.backward_s,
        communication_s=exposed_s,
    )
