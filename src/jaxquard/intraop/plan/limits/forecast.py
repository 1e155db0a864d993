"""The work of a search before it starts: how many programs it will price, and about how long that may take.

Plans are not known yet, so their programs are counted as if all plans differed. Times are those of programs of which no
price is cached.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.intraop.plan.limits.pricing_pace import equations_s, estimate_loops_s
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.pricing import (
    CompilePricer,
    MeasuredPricer,
    MockGpuPricer,
    Pricer,
    Progress,
    RooflinePricer,
    ShardedProgram,
)

# The time of a pricer, as a share of that to compile and run: compilers alone took a third for CPUs, and those for GPUs
# take longer.
_SHARES = ((MeasuredPricer, 1.0), (MockGpuPricer, 1.0), (CompilePricer, 0.5))
# Seconds to price an equation in closed form, on one core.
_CLOSED_FORM_S = 2e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrograms:
    """The programs that whole plans are priced with, at most.

    Attributes:
        sizes: the number of equations of each program of finalists and baselines.
        num_loops: how many plans run as training loops.
        loop_budget_s: the seconds of all loops.
    """

    sizes: Sequence[int] = ()
    num_loops: int = 0
    loop_budget_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchForecast:
    """The work of a search.

    Attributes:
        num_programs: the strategies of segments, and the reshards between them.
        num_for_plans: programs for finalists and baselines, at most.
        num_loops: training loops, at most.
        segments: the segments and their kinds, in words.
        time_s: about how long all of it takes at most; None if the pricer is a custom one.
        is_closed_form: whether prices are computed and nothing is compiled.
        budget_s: the user's budget for the whole search.
    """

    num_programs: int
    num_for_plans: int
    num_loops: int
    segments: str
    time_s: float | None
    is_closed_form: bool
    budget_s: float | None

    def __str__(self) -> str:
        more = f", then at most {self.num_for_plans} for finalists and baselines" if self.num_for_plans else ""
        loops = f" and {_count(self.num_loops, 'training loop')}" if self.num_loops else ""
        budget = "" if self.budget_s is None else f"; time_budget_s={self.budget_s:g} goes to the most important ones"
        counts = f"{_count(self.num_programs, 'program')} to price for {self.segments}{more}{loops}"
        return f"{counts}{self._time_text()}{budget}"

    def _time_text(self) -> str:
        if self.is_closed_form:
            return f": next to no time, as prices are in closed form (up to about {_time(self.time_s or 0.0)})"
        return "" if self.time_s is None else f": up to about {_time(self.time_s)} if none is cached"

    def to_progress(self) -> Progress:
        """Returns it as the first report of a search."""
        return Progress(
            done=0,
            total=self.num_programs + self.num_for_plans,
            name="counting programs",
            num_cached=0,
            left_s=self.time_s,
            announcement=str(self),
        )


def forecast_search(
    analysis: Analysis,
    programs: Sequence[ShardedProgram],
    *,
    plans: PlanPrograms,
    pricer: Pricer,
    time_budget_s: float | None,
) -> SearchForecast:
    """Counts what a search will price, and estimates its time.

    Args:
        programs: the strategies of segments, and the reshards.
        plans: what comes after them.
        pricer: the one that the user has chosen, without its budget.
    """
    segments = _count(len(analysis.segments), "segment")
    kinds = _count(len({segment.kind for segment in analysis.segments}), "kind")
    sizes = [len(program.jaxpr.jaxpr.eqns) for program in programs]
    time_s = _pricing_s(pricer, [*sizes, *plans.sizes])
    if time_s is not None:
        time_s += min(plans.loop_budget_s, estimate_loops_s(len(analysis.graph.equations), plans.num_loops))
        time_s = time_s if time_budget_s is None else min(time_s, time_budget_s)
    return SearchForecast(
        num_programs=len(programs),
        num_for_plans=len(plans.sizes),
        num_loops=plans.num_loops,
        segments=f"{segments} of {kinds}",
        time_s=time_s,
        is_closed_form=isinstance(pricer, RooflinePricer),
        budget_s=time_budget_s,
    )


def plan_program_sizes(analysis: Analysis, *, num_plans: int, num_stored: int, most_whole: int) -> tuple[int, ...]:
    """Returns the number of equations of every program that plans are priced with, if all of them differ.

    Args:
        num_plans: all of them.
        num_stored: of these, plans that keep state in another way than it is used, so that segments are priced again.
        most_whole: a step of no more segments is priced whole; a longer one in pairs of neighbours.
    """
    segments = analysis.segments
    of_block = analysis.segment_of_block()
    owned = Counter(of_block[owner] for owner in analysis.owners)
    single = {segment.kind: owned[segment.number] for segment in segments}
    if len(segments) <= most_whole:
        # The plan that is chosen has prices of its segments, too.
        return (*[len(analysis.graph.equations)] * num_plans, *single.values())
    pairs = {
        (left.kind, right.kind): owned[left.number] + owned[right.number]
        for left, right in itertools.pairwise(segments)
    }
    return (*[*pairs.values()] * num_plans, *[*single.values()] * num_stored)


def _pricing_s(pricer: Pricer, sizes: Sequence[int]) -> float | None:
    """Returns about how long a pricer takes for programs of so many equations; None for a custom one."""
    if isinstance(pricer, RooflinePricer):
        return _CLOSED_FORM_S * sum(sizes)
    share = next((share for kind, share in _SHARES if isinstance(pricer, kind)), None)
    return None if share is None else share * equations_s(sizes)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _time(time_s: float) -> str:
    if time_s < 90:
        return f"{math.ceil(time_s)} s"
    return f"{math.ceil(time_s / 60)} min" if time_s < 90 * 60 else f"{time_s / 3600:.1f} h"
