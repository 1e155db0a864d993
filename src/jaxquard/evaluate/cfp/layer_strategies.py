"""Every strategy of the layers, the same in all of them, as whole plans; embedding and head as the search chose."""

from collections.abc import Sequence

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.baselines import Baseline
from jaxquard.intraop.layouts import Assignment
from jaxquard.intraop.price_segments import StepPrices
from jaxquard.intraop.search_plans import SUM_SLACK

from .sum_price import SumPrice, SumPricer
from .volumes import volumes


def layer_strategies(
    analysis: Analysis,
    prices: StepPrices,
    *,
    chosen: Assignment,
    count: int | None,
    limit_bytes: int | None,
) -> list[Baseline]:
    """Plans for the strategies of the kind of segment that has most, the fastest by equation (8) first.

    Args:
        chosen: what all other segments take, as far as the search looks at it there.
        count: as many of them: some of the fastest, some of least volume, some of all; None for all.
        limit_bytes: those that need far more by equation (9), which counts some memory twice, are left out.
    """
    kind = max(prices.kinds.values(), key=lambda found: len(found.strategies))
    summed = SumPricer(analysis, prices)
    most_bytes = float("inf") if limit_bytes is None else SUM_SLACK * limit_bytes
    base = _searched(analysis, prices, chosen)
    found: list[tuple[SumPrice, Baseline]] = []
    for strategy in kind.strategies:
        assignment = dict(base)
        for segment in analysis.segments:
            if segment.kind == kind.segment.kind:
                assignment.update(zip(segment.blocks, strategy, strict=True))
        price = summed.price(assignment)
        if price is None or price.time_s == float("inf") or most_bytes < price.size_bytes:
            continue
        name = ", ".join("/".join(names) for names in strategy)
        found.append((price, Baseline(name=name, assignment=assignment)))
    found.sort(key=lambda pair: pair[0].time_s)
    return _pick(analysis, [plan for _, plan in found], count)


def _searched(analysis: Analysis, prices: StepPrices, chosen: Assignment) -> dict[int, tuple[str, ...]]:
    """The assignment with strategies that the search knows; for others, as of a baseline, the first stands in."""
    found: dict[int, tuple[str, ...]] = {}
    for segment in analysis.segments:
        strategies = prices.kinds[segment.kind].strategies
        wanted = tuple(tuple(chosen[block]) for block in segment.blocks)
        found.update(zip(segment.blocks, wanted if wanted in strategies else strategies[0], strict=True))
    return found


def _pick(analysis: Analysis, plans: Sequence[Baseline], count: int | None) -> list[Baseline]:
    """As many, in their order: a third are the first, a third those of least volume, the rest evenly spread."""
    if count is None or count >= len(plans):
        return list(plans)
    third = count // 3
    sizes_bytes = volumes(analysis, [plan.assignment for plan in plans])
    kept = {*range(third), *sorted(range(len(plans)), key=sizes_bytes.__getitem__)[:third]}
    left = [place for place in range(len(plans)) if place not in kept]
    wanted = count - len(kept)
    kept |= {left[round(number * (len(left) - 1) / max(wanted - 1, 1))] for number in range(wanted)}
    return [plans[place] for place in sorted(kept)]
