"""The choices for every run of segments that may be a stage, as a table of costs.

A run is extended segment by segment. At each exit layout the choices are kept that no other dominates in all costs, or
some that stand for them. Runs of equal segments are the same run: they share their work, so that a hundred equal layers
cost as much as one run over all of them. A stage begins with any entry layout and ends with any exit layout, as its
values are transferred, not resharded.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from jaxquard.planner.stages.pareto import undominated
from jaxquard.planner.stages.segment_costs import SegmentCosts

# The columns of costs: of one microbatch, once a step, fixed, of an activation, working.
TIME, STEP, FIXED, ACTIVATION, WORKING = range(5)
# Choices kept at an exit layout, about.
MANY_CHOICES, FEW_CHOICES = 48, 16
# The microbatches of a step, and of those that a stage keeps, by which some choices stand for others.
_TYPICAL_MICROBATCHES, _TYPICAL_KEPT = 8, (1, 8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """A run of segments, with the choices at its end.

    Attributes:
        parents: for each choice, the choice of the run without its last segment.
        chosen: for each choice, the strategy of its last segment.
        ends: the choices that none dominates, whatever their exit layout.
    """

    costs: Float[np.ndarray, "choices 5"]
    exits: Int[np.ndarray, " choices"]
    parents: Int[np.ndarray, " choices"]
    chosen: Int[np.ndarray, " choices"]
    ends: Int[np.ndarray, " ends"]
    before: "_Run | None"
    longer: dict[int, "_Run"] = field(default_factory=dict)

    def strategies(self, choice: int) -> tuple[int, ...]:
        run, found = self, []
        while run is not None:
            found.append(int(run.chosen[choice]))
            choice, run = int(run.parents[choice]), run.before
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageOptions:
    """All choices for all runs, by their first segment.

    Attributes:
        starts: the first segment of each.
        stops: the segment after its last.
        costs: the columns above, the values that enter and leave the run among its working bytes.
    """

    num_segments: int
    starts: Int[np.ndarray, " options"]
    stops: Int[np.ndarray, " options"]
    costs: Float[np.ndarray, "options 5"]
    _runs: tuple[_Run, ...] = field(repr=False)
    _stops_of_runs: Int[np.ndarray, " runs"] = field(repr=False)

    def strategies(self, option: int) -> tuple[int, ...]:
        """The strategy of each segment of an option."""
        place = int(self._stops_of_runs.searchsorted(option, side="right"))
        run = self._runs[place]
        # Counted from the last of the run's.
        return run.strategies(int(run.ends[option - self._stops_of_runs[place]]))


def list_stage_options(
    chain: Sequence[SegmentCosts],
    begins: Sequence[int],
    *,
    counts_memory: bool,
    memory_limit_bytes: float = np.inf,
    max_choices: int = MANY_CHOICES,
    max_time_s: float = np.inf,
) -> StageOptions:
    """Returns the choices of all runs from one begin to another, or to the end of the chain.

    Args:
        begins: the segments with which stages may begin, 0 first.
        counts_memory: choices that are slower and need less memory are kept as well; else only the fastest.
        memory_limit_bytes: choices that exceed it by themselves are left out.
        max_choices: kept at an exit layout of a run.
        max_time_s: of a microbatch; longer runs are left out, but for the shortest from each begin.
    """
    runs = _Runs(chain, counts_memory=counts_memory, memory_limit_bytes=memory_limit_bytes, max_choices=max_choices)
    is_end = np.zeros(len(chain) + 1, dtype=bool)
    is_end[[*begins[1:], len(chain)]] = True
    found, ranges = list[_Run](), list[tuple[int, int]]()
    for start in begins:
        run, num_before = None, len(found)
        for place in range(start, len(chain)):
            run = runs.extend(run, place)
            if not len(run.costs) or (len(found) > num_before and run.costs[:, TIME].min() > max_time_s):
                break
            if is_end[place + 1]:
                found.append(run)
                ranges.append((start, place + 1))
    counts = np.asarray([len(run.ends) for run in found], dtype=np.int64)
    starts, stops = np.repeat(np.asarray(ranges, dtype=np.int64).reshape(-1, 2), counts, axis=0).T
    costs = np.concatenate([np.zeros((0, 5)), *(run.costs[run.ends] for run in found)])
    crossing = np.asarray([0, *(segment.input_bytes for segment in chain[1:]), 0], dtype=np.float64)
    costs[:, WORKING] += crossing[starts] + crossing[stops]
    return StageOptions(
        num_segments=len(chain),
        starts=starts,
        stops=stops,
        costs=costs,
        _runs=tuple(found),
        _stops_of_runs=np.cumsum(counts),
    )


class _Runs:
    """Makes the runs of a chain, each once."""

    def __init__(
        self, chain: Sequence[SegmentCosts], *, counts_memory: bool, memory_limit_bytes: float, max_choices: int
    ) -> None:
        self._chain, self._counts_memory = chain, counts_memory
        self._limit_bytes, self._max_choices = memory_limit_bytes, max_choices
        self._roots: dict[int, _Run] = {}
        self._useful: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        numbers: dict[Hashable, int] = {}
        tables = {id(one.reshards_s): None if one.reshards_s is None else one.reshards_s.tobytes() for one in chain}
        # Equal where kind and reshards are.
        self._keys = [numbers.setdefault((one.kind, tables[id(one.reshards_s)]), len(numbers)) for one in chain]

    def extend(self, run: _Run | None, place: int) -> _Run:
        """Returns the run with one more segment."""
        known, key = (self._roots, self._chain[place].kind) if run is None else (run.longer, self._keys[place])
        if key not in known:
            known[key] = self._extend(run, self._chain[place])
        return known[key]

    def _extend(self, run: _Run | None, segment: SegmentCosts) -> _Run:
        rows, own = self._segment(segment)
        exits = segment.costs.column("exit")
        if run is None:
            return self._trim(own, exits[rows], rows, rows, None)
        costs = run.costs[:, None] + own[None]
        costs[:, :, WORKING] = np.maximum(run.costs[:, None, WORKING], own[None, :, WORKING])
        if segment.reshards_s is not None:
            entries = segment.costs.column("entry")[rows]
            costs[:, :, TIME] += np.asarray(segment.reshards_s)[run.exits[:, None], entries[None]]
        parents, chosen = np.divmod(np.arange(costs.shape[0] * costs.shape[1]), len(rows))
        return self._trim(costs.reshape(-1, 5), exits[rows][chosen], parents, rows[chosen], run)

    def _trim(
        self, costs: np.ndarray, exits: np.ndarray, parents: np.ndarray, chosen: np.ndarray, before: _Run | None
    ) -> _Run:
        """Keeps the choices at each exit layout that no other dominates, or some that stand for them."""
        is_possible = np.isfinite(costs[:, TIME]) & (costs[:, FIXED:].sum(axis=1) <= self._limit_bytes)
        kept = [np.arange(0)]
        for layout in np.unique(exits[is_possible]):
            group = np.flatnonzero(is_possible & (exits == layout))
            group = group[self._undominated(costs[group])]
            kept.append(group[self._spread(costs[group])])
        left = np.concatenate(kept)
        return _Run(
            costs=costs[left],
            exits=exits[left],
            parents=parents[left],
            chosen=chosen[left],
            ends=self._undominated(costs[left]),
            before=before,
        )

    def _spread(self, costs: np.ndarray) -> np.ndarray:
        """Returns some rows that stand for all: from the fastest to the smallest, as stages of few and of many kept."""
        if len(costs) <= self._max_choices:
            return np.arange(len(costs))
        time_s, found = _TYPICAL_MICROBATCHES * costs[:, TIME] + costs[:, STEP], [costs[:, :FIXED].argmin(axis=0)]
        for kept in _TYPICAL_KEPT:
            sizes = costs[:, FIXED] + kept * costs[:, ACTIVATION] + costs[:, WORKING]
            front = undominated(np.column_stack([time_s, sizes]))
            found.append(
                front[np.linspace(0, len(front) - 1, self._max_choices // len(_TYPICAL_KEPT)).astype(np.int64)]
            )
        return np.unique(np.concatenate(found))

    def _undominated(self, costs: np.ndarray) -> np.ndarray:
        """Returns the rows that none dominates; of those of equal times, the smallest."""
        if self._counts_memory:
            return undominated(costs)
        by_size = np.argsort(costs[:, FIXED:].sum(axis=1), kind="stable")
        return by_size[undominated(costs[by_size][:, : STEP + 1])]

    def _segment(self, segment: SegmentCosts) -> tuple[np.ndarray, np.ndarray]:
        """Returns the strategies that no other of the same layouts dominates, and their costs."""
        if segment.kind not in self._useful:
            known = segment.costs
            sizes = known.fixed_bytes, known.column("activation_bytes"), known.column("working_bytes")
            costs = np.column_stack([known.microbatch_s, known.column("step_s"), *sizes]).astype(np.float64)
            layouts = known.column("entry") * (1 + known.column("exit").max()) + known.column("exit")
            groups = [np.flatnonzero(layouts == layout) for layout in np.unique(layouts)]
            rows = np.sort(np.concatenate([group[self._undominated(costs[group])] for group in groups]))
            self._useful[segment.kind] = rows, costs[rows]
        return self._useful[segment.kind]
