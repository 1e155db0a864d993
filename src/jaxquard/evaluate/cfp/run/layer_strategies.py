"""Every strategy of the layers as whole plans; segments of one block, as the head, as the search chose.

Layers of the same kind take the same strategy. Where layers are of several kinds, as in a mixture of experts, one kind
at a time takes every strategy, and the others take what the search chose.
"""

from collections.abc import Iterator, Mapping, Sequence

from jaxquard.evaluate.cfp.run.sum_price import SumPrice, SumPricer
from jaxquard.intraop.plan.search_plans import SUM_SLACK
from jaxquard.intraop.plan.segment_prices import StepPrices
from jaxquard.intraop.plan.volume import volumes_bytes
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.baselines import CandidatePlan
from jaxquard.intraop.shardings.layouts import Assignment


def layer_strategies(
    analysis: Analysis,
    prices: StepPrices,
    *,
    bases: Sequence[Assignment],
    count: int | None,
    limit_bytes: int | None,
) -> list[CandidatePlan]:
    """Plans for the strategies of every kind of segment of more than one block, the fastest by equation (8) first.

    Args:
        bases: what all other segments take: the first of these that has only strategies of the search.
        count: as many of them: some of the fastest, some of minimum volume, some of all; None for all.
        limit_bytes: those that need far more by equation (9), which counts some memory twice, are left out.
    """
    summed = SumPricer(analysis, prices)
    most_bytes = float("inf") if limit_bytes is None else SUM_SLACK * limit_bytes
    base = _base(analysis, prices, bases, summed)
    found: dict[tuple[tuple[str, ...], ...], tuple[SumPrice, CandidatePlan]] = {}
    for name, assignment in _variants(analysis, prices, base):
        price = summed.price(assignment)
        if price is not None and price.time_s != float("inf") and price.size_bytes <= most_bytes:
            key = tuple(assignment[block.number] for block in analysis.blocks)
            found.setdefault(key, (price, CandidatePlan(name=name, assignment=assignment)))
    ordered = sorted(found.values(), key=lambda pair: pair[0].time_s)
    return _pick(prices, [plan for _, plan in ordered], count)


def _variants(
    analysis: Analysis, prices: StepPrices, base: Mapping[int, tuple[str, ...]]
) -> Iterator[tuple[str, dict[int, tuple[str, ...]]]]:
    """Names and assignments: in the base, all segments of one kind take another strategy."""
    most = max(len(found.segment.blocks) for found in prices.kinds.values())
    kinds = [found for found in prices.kinds.values() if len(found.segment.blocks) > 1 or most == 1]
    for found in kinds:
        for strategy in found.strategies:
            assignment = dict(base)
            for segment in analysis.segments:
                if segment.kind == found.segment.kind:
                    assignment.update(zip(segment.blocks, strategy, strict=True))
            name = ", ".join("/".join(names) for names in strategy)
            yield name if len(kinds) == 1 else f"{name} in kind {found.segment.kind}", assignment


def _base(
    analysis: Analysis, prices: StepPrices, bases: Sequence[Assignment], summed: SumPricer
) -> dict[int, tuple[str, ...]]:
    """The first assignment that the search can price; if none is, as with baselines alone, rows everywhere."""
    for one in bases:
        if summed.price(one) is not None:
            return {block.number: tuple(one[block.number]) for block in analysis.blocks}
    first: dict[int, tuple[str, ...]] = {}
    for segment in analysis.segments:
        first.update(zip(segment.blocks, prices.kinds[segment.kind].strategies[0], strict=True))
    return first


def _pick(prices: StepPrices, plans: Sequence[CandidatePlan], count: int | None) -> list[CandidatePlan]:
    """As many, in their order: a third are the first, a third those of minimum volume, the rest evenly spread."""
    if count is None or count >= len(plans):
        return list(plans)
    third = count // 3
    sizes_bytes = volumes_bytes(prices.programs, [plan.assignment for plan in plans])
    kept = {*range(third), *sorted(range(len(plans)), key=sizes_bytes.__getitem__)[:third]}
    left = [place for place in range(len(plans)) if place not in kept]
    wanted = count - len(kept)
    kept |= {left[round(number * (len(left) - 1) / max(wanted - 1, 1))] for number in range(wanted)}
    return [plans[place] for place in sorted(kept)]
