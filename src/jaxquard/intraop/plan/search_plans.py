"""Chooses a plan by the prices of segments: search, finalists, baselines, prediction (CFP, section 4.4).

The search is exact for its prices, but prices of segments alone leave out what neighbours share. So the fastest plan
for each strategy of a layer is found as well, and the best few are priced again together with their neighbours
(`predict`). Layers are the kinds of segments with most strategies; an MoE model has two. The closest are compared side
by side, and run as training loops (`compare`).
"""

import itertools
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.compare import compare_plans, run_loops
from jaxquard.intraop.plan.explain_mismatch import explain_mismatch
from jaxquard.intraop.plan.predict import Prediction, predict_all, with_segments
from jaxquard.intraop.plan.segment_prices import StepPrices, assignment_of, make_chain
from jaxquard.intraop.plan.volume import volume_baseline
from jaxquard.intraop.search.chain import fastest_with, search_chain
from jaxquard.intraop.search.frontier import Frontier, FrontierPoint
from jaxquard.intraop.search.priced_segment import PricedSegment
from jaxquard.intraop.shardings.baselines import CandidatePlan, baselines
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.pricing import Failure, LoopPricer, OnProgress, Pricer

# The sum of equation (9) may exceed the memory of a plan as one program by this factor: 1.05 to 1.47 in our evaluation.
SUM_SLACK = 1.5
# For so many finalists, one more of the fastest plans has its state stored in these ways.
_STORED_SHARE = 4
_STORAGES = (Storage.ZERO_1, Storage.ZERO_3)
# Three blocks of three choices count beside four with experts, which have 144 together; an embedding alone does not.
_ABOUT_AS_MANY = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSearch:
    """All candidate plans, and the chosen one.

    Attributes:
        finalists: of the search, its own answer first; none if nothing fits.
        baselines: known recipes.
        predictions: of the finalists, then of the baselines.
        chosen: the place of the fastest of them that fits.
        points: the Pareto frontier.
        composed_s: seconds that the search itself took, without prices.
        gap_s: by how much another plan might be faster, by equation (8); 0 unless the proof was given up.
    """

    finalists: tuple[CandidatePlan, ...] = field(repr=False)
    baselines: tuple[CandidatePlan, ...] = field(repr=False)
    predictions: tuple[Prediction, ...] = field(repr=False)
    chosen: int
    points: tuple[FrontierPoint, ...] = field(repr=False)
    composed_s: float
    gap_s: float = 0.0

    @property
    def plans(self) -> tuple[CandidatePlan, ...]:
        """The candidates, in the order of the predictions."""
        return (*self.finalists, *self.baselines)

    @property
    def size_bytes(self) -> int:
        """The memory of the chosen plan on each device."""
        return self.predictions[self.chosen].size_bytes

    @property
    def failures(self) -> list[Failure]:
        """The failures of programs that got no price when plans were priced."""
        return [failure for one in self.predictions for failure in one.failures]

    @property
    def baseline_predictions(self) -> tuple[Prediction, ...]:
        """The predictions of the baselines."""
        return self.predictions[len(self.finalists) :]


def search_plans(
    prices: StepPrices,
    *,
    pricer: Pricer,
    memory_limit_bytes: int | None,
    num_finalists: int,
    on_progress: OnProgress | None = None,
    is_limit_given: bool = True,
    loop_budget_s: float = 0.0,
) -> PlanSearch:
    """Finds the fastest plan that fits, of the search's finalists and of the baselines alike.

    Args:
        is_limit_given: whether the limit is the user's, or else all that the devices have.
        loop_budget_s: with a pricer that can run programs, the fastest plans run as training loops in the end, for
            about so long (`run_loops`); 0 for none.

    Raises:
        ShardingError: if no plan runs, or none fits in memory; it says why, or what would fit.
    """
    start_s = time.perf_counter()
    chain = make_chain(prices)
    free = _search(chain, None)
    frontier = free if memory_limit_bytes is None else _search(chain, memory_limit_bytes)
    finalists = _finalists(prices, chain, free, memory_limit_bytes, count=num_finalists)
    composed_s = time.perf_counter() - start_s
    others = (*baselines(prices.analysis).values(), volume_baseline(prices.programs))
    plans = [*finalists, *others]
    options = {"num_finalists": len(finalists), "memory_limit_bytes": memory_limit_bytes, "on_progress": on_progress}
    predicted = predict_all(prices, plans, pricer=pricer, on_progress=on_progress)
    predicted = compare_plans(prices, plans, predicted, pricer=pricer, **options)
    if loop_budget_s > 0 and isinstance(pricer, LoopPricer):
        predicted = run_loops(prices, plans, predicted, pricer=pricer, budget_s=loop_budget_s, **options)
    chosen = _fastest(predicted, memory_limit_bytes)
    if chosen is None and isinstance(free, Frontier):
        smallest, place = _smallest(prices, free), len(finalists)
        finalists, plans = [*finalists, *smallest], [*finalists, *smallest, *others]
        predicted[place:place] = predict_all(prices, smallest, pricer=pricer, on_progress=on_progress)
        chosen = _fastest(predicted, memory_limit_bytes)
    if chosen is None:
        raise explain_mismatch(
            free,
            prices,
            list(zip(plans, predicted, strict=True)),
            num_finalists=len(finalists),
            memory_limit_bytes=memory_limit_bytes,
            is_limit_given=is_limit_given,
        )
    predicted[chosen] = with_segments(prices, plans[chosen], predicted[chosen], pricer=pricer)
    return PlanSearch(
        finalists=tuple(finalists),
        baselines=others,
        predictions=tuple(predicted),
        chosen=chosen,
        points=frontier.points if isinstance(frontier, Frontier) else (),
        composed_s=composed_s,
        gap_s=frontier.gap_s if isinstance(frontier, Frontier) else 0.0,
    )


def _finalists(
    prices: StepPrices,
    chain: Sequence[PricedSegment],
    free: Frontier | ShardingError,
    memory_limit_bytes: int | None,
    *,
    count: int,
) -> list[CandidatePlan]:
    """Returns the plans that are priced again.

    With a limit, half of them keep it by equation (9), and the others may after all. Then come the fastest of all with
    ZeRO's storage: it saves memory, and the work of updating the same weights on every device.
    """
    limits = [None] if memory_limit_bytes is None else [memory_limit_bytes, int(SUM_SLACK * memory_limit_bytes)]
    found: dict[Hashable, CandidatePlan] = {}
    for limit in limits:
        frontier = free if limit is None else _search(chain, limit)
        if isinstance(frontier, Frontier):
            share = -(-count // len(limits))
            best = frontier.best
            for plan in choose_finalists(prices, chain, best, memory_limit_bytes=limit, count=share):
                found.setdefault(plan.key, plan)
    plans = list(found.values())
    if isinstance(free, Frontier):
        count = -(-count // _STORED_SHARE)
        fast = choose_finalists(prices, chain, free.best, memory_limit_bytes=None, count=count)
        plans += [replace(plan, storage=storage) for plan in fast for storage in _STORAGES]
    return [replace(plan, name=f"finalist {number}") for number, plan in enumerate(plans)]


def choose_finalists(
    prices: StepPrices,
    chain: Sequence[PricedSegment],
    best: FrontierPoint,
    *,
    memory_limit_bytes: int | None,
    count: int,
) -> list[CandidatePlan]:
    """Returns at most `count` plans, the search's own answer first, then with other strategies for the layers."""
    of_kinds = []
    counts = {kind: len(found.strategies) for kind, found in prices.kinds.items()}
    for kind in (kind for kind, count in counts.items() if _ABOUT_AS_MANY * count >= max(counts.values())):
        places = [place for place, segment in enumerate(prices.analysis.segments) if segment.kind == kind]
        times = chain[places[0]].times_s
        points = [
            fastest_with(chain, places, strategy, memory_limit_bytes=memory_limit_bytes)
            for strategy in sorted(range(len(times)), key=times.__getitem__)[: 3 * count]
        ]
        of_kinds.append(sorted(filter(None, points), key=lambda point: point.time_s))
    # The best of each kind in turns, so that none takes all places.
    ranked = itertools.chain(*itertools.zip_longest(*of_kinds))
    unique = {point.choices: point for point in (best, *filter(None, ranked))}
    return [
        CandidatePlan(name=f"finalist {number}", assignment=assignment_of(prices, point))
        for number, point in enumerate([*unique.values()][:count])
    ]


def _smallest(prices: StepPrices, free: Frontier) -> list[CandidatePlan]:
    """Returns the plans of minimum memory by equation (9), for when no other fits."""
    plan = CandidatePlan(name="smallest", assignment=assignment_of(prices, free.smallest))
    return [plan, replace(plan, name="smallest, zero 3", storage=Storage.ZERO_3)]


def _search(chain: Sequence[PricedSegment], memory_limit_bytes: int | None) -> Frontier | ShardingError:
    """Returns the frontier; or why there is none: a baseline with another storage may still fit."""
    try:
        return search_chain(chain, memory_limit_bytes=memory_limit_bytes)
    except ShardingError as error:
        return error


def _fastest(predicted: Sequence[Prediction], memory_limit_bytes: int | None) -> int | None:
    """Returns the fastest plan that fits, finalists and baselines alike; None if none does.

    Times of the last comparison count. A price in closed form may be wrong by a factor, so a plan that has one in part
    comes after all that have none.
    """

    def rank(place: int) -> tuple[int, bool, float]:
        one = predicted[place]
        return -one.num_rounds, one.is_modelled, one.time_s

    fitting = [place for place, one in enumerate(predicted) if one.fits(memory_limit_bytes)]
    return min(fitting, key=rank, default=None)
