"""Merges the segments between places where stages may begin into one: a shorter chain of the same step."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from jaxquard.planner.stages.chains.dominance import representatives, undominated
from jaxquard.planner.stages.segment_costs import COUNTS, SECONDS, CostTable, SegmentCosts, StageAssignment

# Strategies of a merged segment, for each pair of layouts at its ends, beside the fastest.
_MAX_STRATEGIES = 16
_NUMBERS = (*SECONDS, *(name for name in COUNTS if name.endswith("bytes")))
_NUM_BYTES = len(_NUMBERS) - len(SECONDS)
_TIMES = [_NUMBERS.index(name) for name in ("forward_s", "recompute_s", "input_gradient_s", "weight_gradient_s")]
_FIXED = [_NUMBERS.index(name) for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes")]
_STEP, _WORKING = _NUMBERS.index("step_s"), _NUMBERS.index("working_bytes")
_REST = [_NUMBERS.index("activation_bytes"), _WORKING]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Merged:
    """A run of segments as one.

    Attributes:
        choices: for each strategy, those of the run's segments.
    """

    kind: int
    strategies: CostTable
    choices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MergedChain:
    """A chain whose segments are runs of another's.

    Attributes:
        segments: of the shorter chain.
        stops: for each of them, the segment of the longer chain after its last.
    """

    segments: tuple[SegmentCosts, ...]
    stops: tuple[int, ...]
    _merged: tuple[_Merged, ...] = field(repr=False)

    def expand(self, found: StageAssignment) -> StageAssignment:
        """Returns an assignment of the shorter chain as one of the longer."""
        choices = [run.choices[place] for run, place in zip(self._merged, found.strategies, strict=True)]
        return replace(
            found,
            stops=tuple(self.stops[stop - 1] for stop in found.stops),
            strategies=tuple(itertools.chain.from_iterable(choices)),
            is_proven=False,
        )


def find_cheap_begins(chain: Sequence[SegmentCosts], *, factor: float, reach: int) -> tuple[int, ...]:
    """Returns the segments where stages may begin and few bytes enter; 0 first.

    Few are at most so many times the fewest that enter a segment nearby: where activations shrink along the step, as in
    a convolutional network, its beginning has places too.

    Args:
        reach: segments before and after that are nearby.
    """
    sizes = np.asarray([float(segment.input_bytes) if segment.can_begin_stage else np.inf for segment in chain])
    sizes[:1] = np.inf
    padded = np.pad(sizes, reach, constant_values=np.inf)
    nearby = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).min(axis=1)
    return 0, *np.flatnonzero(np.isfinite(sizes) & (sizes <= factor * nearby)).tolist()


def merge_segments(chain: Sequence[SegmentCosts], begins: Collection[int]) -> MergedChain:
    """Merges the segments from each of the begins to the next. Strategies that others dominate are left out."""
    bounds = [*sorted(begins), len(chain)]
    known: dict[object, _Merged] = {}
    made: dict[tuple[int, int], SegmentCosts] = {}
    merged, segments = [], []
    for start, stop in itertools.pairwise(bounds):
        run = chain[start:stop]
        key = tuple((segment.kind, id(segment.reshards_s) if place else 0) for place, segment in enumerate(run))
        if key not in known:
            known[key] = _merge(run, len(known))
        merged.append(known[key])
        place = id(run[0]), known[key].kind
        if place not in made:
            made[place] = replace(run[0], kind=known[key].kind, strategies=known[key].strategies)
        segments.append(made[place])
    return MergedChain(segments=tuple(segments), stops=tuple(bounds[1:]), _merged=tuple(merged))


def _merge(run: Sequence[SegmentCosts], kind: int) -> _Merged:
    """Joins the strategies of segments one by one, as rows of numbers."""
    rows, entries, exits = _rows(run[0])
    choices = np.arange(len(rows))[:, None]
    for segment in run[1:]:
        own, own_entries, own_exits = _rows(segment)
        before, after = (found.ravel() for found in np.indices((len(rows), len(own))))
        joined = rows[before] + own[after]
        joined[:, _WORKING] = np.maximum(rows[before, _WORKING], own[after, _WORKING])
        if segment.reshards_s is not None:
            # Half in the forward, half in the backward.
            reshards_s = np.asarray(segment.reshards_s)[exits[before], own_entries[after]]
            for name, share in (("forward_s", 0.5), ("input_gradient_s", 0.5), ("communication_s", 1.0)):
                joined[:, _NUMBERS.index(name)] += share * reshards_s
        kept = _keep(joined, entries[before] * (own_exits.max() + 1) + own_exits[after])
        before, after = before[kept], after[kept]
        rows, entries, exits = joined[kept], entries[before], own_exits[after]
        choices = np.column_stack([choices[before], after])
    return _Merged(
        kind=kind,
        strategies=CostTable(
            rows[:, : len(SECONDS)],
            np.column_stack([np.rint(rows[:, len(SECONDS) :]), entries, exits]).astype(np.int64),
        ),
        choices=tuple(map(tuple, choices.tolist())),
    )


def _rows(segment: SegmentCosts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the numbers of a segment's strategies, their entry and their exit layouts."""
    costs = segment.costs
    return np.hstack([costs.seconds, costs.counts[:, :_NUM_BYTES]]), costs.column("entry"), costs.column("exit")


def _keep(rows: np.ndarray, layouts: np.ndarray) -> np.ndarray:
    """Returns the rows that none of the same layouts dominates; few of many."""
    costs = np.column_stack([rows[:, _TIMES].sum(axis=1), rows[:, _STEP], rows[:, _FIXED].sum(axis=1), rows[:, _REST]])
    kept = []
    for layout in np.unique(layouts):
        group = np.flatnonzero(layouts == layout)
        group = group[undominated(costs[group])]
        if len(group) > _MAX_STRATEGIES:
            # Whatever is the fastest without a limit of memory is among them.
            fastest = undominated(costs[group][:, :2])
            group = group[np.union1d(fastest, representatives(costs[group], _MAX_STRATEGIES))]
        kept.append(group)
    return np.sort(np.concatenate(kept))
