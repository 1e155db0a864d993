"""The costs of a step with any number of microbatches, from those with one or two others.

Costs are linear in the rows of a microbatch: a kernel has a time to begin, and one for each row. A search asks for many
chains that follow from the same two, so that these are prepared once, and all strategies of a chain are mixed at once.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.stages.segment_costs import COUNTS, SECONDS, CostTable, SegmentCosts, share_equal

# What a microbatch takes; the rest is there once a step, or all the time.
_MIXED_SECONDS = [place for place, name in enumerate(SECONDS) if name not in ("step_s", "gradient_sum_s")]
_MIXED_COUNTS = [COUNTS.index("activation_bytes"), COUNTS.index("working_bytes")]

# Returns whether the blocks of a segment can have a strategy.
Fits = Callable[[Sequence[int], Strategy], bool]


def find_serving(count: int, references: Sequence[int], blocks: Sequence[object]) -> Sequence[int]:
    """Returns the references that costs are taken from: all, or the nearest where their segments differ.

    Small microbatches may have other segments, as fewer of their dims can be sharded.
    """
    if blocks[0] == blocks[-1]:
        return references
    return [references[0 if count * count <= references[0] * references[-1] else -1]]


class CostsByRows:
    """Costs that are known with one or two numbers of microbatches, of the same segments.

    Args:
        references: the numbers.
        known: the costs with each.
    """

    def __init__(self, references: Sequence[int], known: Sequence[StepCosts]) -> None:
        first, last = known[0], known[-1]
        self._rows = 1 / references[0], 1 / references[-1]
        self._blocks, self._strategies = first.blocks, first.strategies
        # Segments that are one object have the same strategies: the first of them stands for all.
        keys = [(id(one), id(other)) for one, other in zip(first.segments, last.segments, strict=True)]
        stands: dict[Hashable, int] = {}
        self._stands = [stands.setdefault(key, place) for place, key in enumerate(keys)]
        self._first, self._last = share_equal(first.segments), share_equal(last.segments)
        # For each strategy of the first, its place among those of the last.
        self._matches: dict[int, list[int | None]] = {}
        for place in stands.values():
            places = {names: at for at, names in enumerate(last.strategies[place])}
            self._matches[place] = [places.get(names) for names in first.strategies[place]]
        self._all, self._begins = _join([one.costs for one in (*self._last, *self._first)])

    def with_microbatches(self, count: int, *, fits: Fits = lambda blocks, strategy: True) -> tuple[SegmentCosts, ...]:
        """Returns the costs with so many microbatches: linear in rows between two that are known, or scaled from one.

        Args:
            fits: where it holds for no strategy of a segment, all stay.
        """
        kinds: dict[Hashable, tuple[int, int, int]] = {}
        firsts, lasts, kind_of = list[int](), list[int](), dict[int, tuple[int, int, int]]()
        for place in self._matches:
            own = self._pair(place, fits)
            if own not in kinds:
                kinds[own] = len(kinds), len(firsts), len(firsts) + len(own[0])
                firsts += own[0]
                lasts += own[1]
            kind_of[place] = kinds[own]
        costs = mix_costs(self._all, np.asarray(firsts), self._all, np.asarray(lasts), self._weights(count))
        return self._make_chain(costs, kind_of, scale=1 / count / self._rows[0])

    def _pair(self, place: int, fits: Fits) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the rows of the strategies that both have, in the first and in the last."""
        one, other = (self._begins[id(found[place].costs)] for found in (self._first, self._last))
        blocks, matches = self._blocks[place], self._matches[place]
        own = [at for at, names in enumerate(self._strategies[place]) if fits(blocks, names)] or range(len(matches))
        pairs = [(one + at, other + match) for at in own if (match := matches[at]) is not None]
        if not pairs:
            every = tuple(range(one, one + len(matches)))
            return every, every
        firsts, lasts = zip(*pairs, strict=True)
        return firsts, lasts

    def _weights(self, count: int) -> tuple[float, float]:
        rows, (first_rows, last_rows) = 1 / count, self._rows
        if first_rows == last_rows:
            return rows / first_rows, 0.0
        weight = (rows - last_rows) / (first_rows - last_rows)
        return weight, 1 - weight

    def _make_chain(
        self, costs: CostTable, kind_of: dict[int, tuple[int, int, int]], *, scale: float
    ) -> tuple[SegmentCosts, ...]:
        """Returns the segments of all places; what one reshards is scaled by rows.

        Args:
            kind_of: for each place that stands for others, its kind, and where the rows of that begin and end.
        """
        reshards: dict[int, np.ndarray | None] = {id(None): None}
        made: dict[Hashable, SegmentCosts] = {}
        found: dict[int, SegmentCosts] = {}
        tables: dict[int, CostTable] = {}
        for place, (kind, start, stop) in kind_of.items():
            segment = self._first[place]
            table, key = segment.reshards_s, (id(segment), kind)
            if table is not None and id(table) not in reshards:
                reshards[id(table)] = table * scale
            if key not in made:
                made[key] = replace(
                    segment,
                    kind=kind,
                    strategies=tables.setdefault(kind, costs[start:stop]),
                    reshards_s=reshards[id(table)],
                    input_bytes=round(segment.input_bytes * scale),
                )
            found[place] = made[key]
        return tuple([found[place] for place in self._stands])


def _join(tables: Sequence[CostTable]) -> tuple[CostTable, dict[int, int]]:
    """Returns tables as one, each once, and for each by its identity where its rows begin."""
    known = {id(table): table for table in tables}
    ends = np.cumsum([len(table) for table in known.values()]).tolist()
    joined = CostTable(
        np.concatenate([table.seconds for table in known.values()]),
        np.concatenate([table.counts for table in known.values()]),
    )
    return joined, dict(zip(known, (0, *ends), strict=False))


def mix_costs(
    first: CostTable,
    first_places: np.ndarray,
    last: CostTable,
    last_places: np.ndarray,
    weights: tuple[float, float],
) -> CostTable:
    """Returns the times and bytes of one microbatch between two; the rest is that of the first."""
    seconds, counts = first.seconds[first_places], first.counts[first_places]
    for rows, others, columns in ((seconds, last.seconds, _MIXED_SECONDS), (counts, last.counts, _MIXED_COUNTS)):
        mixed = weights[0] * rows[:, columns] + weights[1] * others[last_places][:, columns]
        mixed = np.maximum(mixed, 0.0)
        rows[:, columns] = np.rint(mixed) if rows is counts else mixed
    return CostTable(seconds, counts)
