"""The strategies of every run of segments that may be a stage, as a table of costs.

A run is extended segment by segment. At each exit layout the choices are kept that no other dominates in all costs, so
that the best stage of any configuration is among them. Runs of equal segments are the same run: they share their work,
so that a hundred equal layers cost as much as one run over all of them. A stage begins with any entry layout and ends
with any exit layout, as its values are transferred, not resharded.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int

from jaxquard.planner.stages.chains.dominance import representatives, undominated
from jaxquard.planner.stages.segment_costs import CostTable, SegmentCosts

# The columns of costs: of one microbatch, once a step, fixed, of an activation, working.
TIME, STEP, FIXED, ACTIVATION, WORKING = range(5)
_TIME_COLUMNS = (TIME, STEP)
_ALL_COLUMNS = (TIME, STEP, FIXED, ACTIVATION, WORKING)
# A table is made for somewhat larger loads than are asked for, as the next schedule may ask for more.
_SPARE = 1.25
# Choices kept at an exit layout.
MAX_CHOICES = 48


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionTable:
    """All choices for all runs, by their first segment.

    Attributes:
        starts: the first segment of each.
        stops: the segment after its last.
        costs: the columns above, the values that enter and leave the run among its working bytes.
        bounds: where the options of each first segment begin, and at last where they end.
        is_whole: False if choices were dropped that no other dominates.
    """

    starts: Int[np.ndarray, " options"]
    stops: Int[np.ndarray, " options"]
    costs: Float[np.ndarray, "options 5"]
    bounds: Int[np.ndarray, " segments_and_one"]
    is_whole: bool
    runs: tuple["_Run", ...] = field(repr=False)
    run_of: Int[np.ndarray, " options"] = field(repr=False)
    choice_of: Int[np.ndarray, " options"] = field(repr=False)

    def within(self, num_microbatches: int, max_load_s: float) -> "OptionTable":
        """Returns the options whose load, (microbatches - 1) x their time + their time once a step, is not larger."""
        if not np.isfinite(max_load_s):
            return self
        kept = np.flatnonzero((num_microbatches - 1) * self.costs[:, TIME] + self.costs[:, STEP] <= max_load_s)
        if len(kept) == len(self.starts):
            return self
        return replace(
            self,
            starts=self.starts[kept],
            stops=self.stops[kept],
            costs=self.costs[kept],
            bounds=np.searchsorted(self.starts[kept], np.arange(len(self.bounds))),
            run_of=self.run_of[kept],
            choice_of=self.choice_of[kept],
        )

    def strategies(self, option: int) -> tuple[int, ...]:
        """The strategy of each segment of an option."""
        return self.runs[self.run_of[option]].strategies(int(self.choice_of[option]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """A run of segments, with the choices at its end.

    Attributes:
        parents: for each choice, that of the run without its last segment.
        chosen: for each choice, the strategy of its last segment.
        ends: the choices that none dominates, whatever their exit layout.
    """

    costs: Float[np.ndarray, "choices 5"]
    exits: Int[np.ndarray, " choices"]
    parents: Int[np.ndarray, " choices"]
    chosen: Int[np.ndarray, " choices"]
    ends: Int[np.ndarray, " ends"]
    before: "_Run | None"
    is_whole: bool
    longer: dict[int, "_Run"] = field(default_factory=dict)
    loads_s: dict[int, float] = field(default_factory=dict)

    def shortest_load_s(self, num_microbatches: int) -> float:
        """The minimum of (microbatches - 1) x time + the time once a step; infinite without a choice.

        Longer runs have no shorter one.
        """
        if num_microbatches not in self.loads_s:
            loads_s = (num_microbatches - 1) * self.costs[:, TIME] + self.costs[:, STEP]
            self.loads_s[num_microbatches] = float(loads_s.min(initial=np.inf))
        return self.loads_s[num_microbatches]

    def strategies(self, choice: int) -> tuple[int, ...]:
        run, found = self, []
        while run is not None:
            found.append(int(run.chosen[choice]))
            choice, run = int(run.parents[choice]), run.before
        return tuple(reversed(found))


class RangeOptions:
    """The choices of all runs of a chain, for one device's memory.

    Args:
        counts_memory: choices that are slower and need less memory are kept as well; else those that no other
            dominates in time.
        memory_limit_bytes: choices that exceed it by themselves are left out.
        max_choices: kept at an exit layout.
    """

    def __init__(
        self,
        chain: Sequence[SegmentCosts],
        *,
        counts_memory: bool,
        memory_limit_bytes: float | None = None,
        max_choices: int = MAX_CHOICES,
    ) -> None:
        self._chain = tuple(chain)
        self._columns = list(_ALL_COLUMNS if counts_memory else _TIME_COLUMNS)
        self._limit_bytes = memory_limit_bytes if counts_memory else None
        self._max_choices = max_choices
        self._roots: dict[Hashable, _Run] = {}
        self._segments: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = {}
        self._keys = self._number_segments()
        self._tables: dict[tuple[int, int], tuple[float, OptionTable]] = {}

    def table(self, num_stages: int, *, num_microbatches: int = 1, max_load_s: float = np.inf) -> OptionTable:
        """Returns the options of all runs that can be one of so many stages.

        Args:
            max_load_s: runs are left out for which (microbatches - 1) x their time + their time once a step is more.
        """
        key = min(num_stages, 3), num_microbatches
        made_for_s, table = self._tables.get(key, (-np.inf, None))
        if table is None or made_for_s < max_load_s:
            made_for_s = _SPARE * max_load_s
            table = self._make_table(key[0], num_microbatches, made_for_s)
            self._tables[key] = made_for_s, table
        return table.within(num_microbatches, max_load_s)

    def _make_table(self, num_stages: int, num_microbatches: int, max_load_s: float) -> OptionTable:
        chain, length, keys = self._chain, len(self._chain), self._keys
        begins = [0, *(place for place in range(1, length) if chain[place].can_begin_stage)]
        if num_stages == 1:
            begins = begins[:1]
        is_end = np.zeros(length + 1, dtype=bool)
        is_end[length] = True
        is_end[begins[1:]] = num_stages > 1
        runs, starts, stops = [], [], []
        is_whole = True
        for start in begins:
            run = None
            for place in range(start, length):
                known = None if run is None else run.longer.get(keys[place])
                run = self._extend(run, place) if known is None else known
                if not len(run.costs):
                    # Nothing fits, and longer runs fit less; what was dropped before might.
                    is_whole &= run.is_whole
                    break
                shortest_s = run.loads_s.get(num_microbatches)
                if (run.shortest_load_s(num_microbatches) if shortest_s is None else shortest_s) > max_load_s:
                    break
                # Of two stages, the second one ends the chain.
                if is_end[place + 1] and (num_stages != 2 or start == 0 or place + 1 == length):
                    is_whole &= run.is_whole
                    runs.append(run)
                    starts.append(start)
                    stops.append(place + 1)
        return self._join(runs, np.asarray(starts, dtype=np.int64), np.asarray(stops, dtype=np.int64), is_whole)

    def _join(self, runs: list[_Run], starts: np.ndarray, stops: np.ndarray, is_whole: bool) -> OptionTable:
        numbers: dict[int, int] = {}
        run_of = np.asarray([numbers.setdefault(id(run), len(numbers)) for run in runs], dtype=np.int64)
        known = list({id(run): run for run in runs}.values())
        counts = np.asarray([len(run.ends) for run in known], dtype=np.int64)
        option_runs = np.repeat(run_of, counts[run_of])
        firsts = np.cumsum(counts[run_of]) - counts[run_of]
        rows = np.arange(len(option_runs)) - np.repeat(firsts, counts[run_of])
        rows += (np.cumsum(counts) - counts)[option_runs]
        costs = np.concatenate([np.zeros((0, 5)), *(run.costs[run.ends] for run in known)])[rows]
        option_starts, option_stops = np.repeat(starts, counts[run_of]), np.repeat(stops, counts[run_of])
        crossing = np.asarray([0, *(segment.input_bytes for segment in self._chain[1:]), 0], dtype=np.float64)
        costs[:, WORKING] += crossing[option_starts] + crossing[option_stops]
        return OptionTable(
            starts=option_starts,
            stops=option_stops,
            costs=costs,
            bounds=np.searchsorted(option_starts, np.arange(len(self._chain) + 1)),
            is_whole=is_whole,
            runs=tuple(known),
            run_of=option_runs,
            choice_of=np.concatenate([np.arange(0), *(run.ends for run in known)])[rows],
        )

    def _number_segments(self) -> list[int]:
        """Returns a number for each place: equal where kind and reshards are."""
        arrays: dict[int, Hashable] = {}
        numbers: dict[Hashable, int] = {}
        keys = []
        for segment in self._chain:
            table = segment.reshards_s
            if id(table) not in arrays:
                arrays[id(table)] = None if table is None else (table.shape, table.tobytes())
            keys.append(numbers.setdefault((segment.kind, arrays[id(table)]), len(numbers)))
        return keys

    def _extend(self, run: _Run | None, place: int) -> _Run:
        """Returns the run with one more segment; equal runs are one."""
        segment = self._chain[place]
        if run is None:
            if segment.kind not in self._roots:
                self._roots[segment.kind] = self._begin(segment)
            return self._roots[segment.kind]
        longer = self._append(run, segment)
        run.longer[self._keys[place]] = longer
        return longer

    def _begin(self, segment: SegmentCosts) -> _Run:
        numbers, costs, _, exits = self._segment(segment)
        return self._trim(costs, exits, numbers, numbers, None)

    def _append(self, run: _Run, segment: SegmentCosts) -> _Run:
        numbers, own, entries, exits = self._segment(segment)
        num_choices, num_strategies = len(run.costs), len(own)
        costs = run.costs[:, None] + own[None]
        costs[:, :, WORKING] = np.maximum(run.costs[:, None, WORKING], own[None, :, WORKING])
        if segment.reshards_s is not None:
            costs[:, :, TIME] += np.asarray(segment.reshards_s)[run.exits[:, None], entries[None]]
        parents, chosen = np.divmod(np.arange(num_choices * num_strategies), num_strategies)
        return self._trim(costs.reshape(-1, 5), exits[chosen], parents, numbers[chosen], run)

    def _trim(
        self, costs: np.ndarray, exits: np.ndarray, parents: np.ndarray, chosen: np.ndarray, before: _Run | None
    ) -> _Run:
        """Keeps the choices at each exit layout that no other dominates, or some that stand for them."""
        is_possible = np.isfinite(costs[:, TIME])
        if self._limit_bytes is not None:
            is_possible &= costs[:, [FIXED, ACTIVATION, WORKING]].sum(axis=1) <= self._limit_bytes
        possible = np.flatnonzero(is_possible)
        is_whole = before is None or before.is_whole
        kept = []
        used = exits[possible]
        numbers = sorted(set(used.tolist()))
        for exit_ in numbers:
            group = possible if len(numbers) == 1 else possible[used == exit_]
            group = group[self._undominated(costs[group])]
            if len(group) > self._max_choices:
                is_whole = False
                group = group[representatives(costs[group][:, self._columns], self._max_choices)]
            kept.append(group)
        chosen_rows = np.concatenate([np.arange(0), *kept])
        costs = costs[chosen_rows]
        return _Run(
            costs=costs,
            exits=exits[chosen_rows],
            parents=parents[chosen_rows],
            chosen=chosen[chosen_rows],
            # The choices at one exit layout are in order already, and none dominates another.
            ends=np.arange(len(costs)) if len(numbers) == 1 else self._undominated(costs),
            before=before,
            is_whole=is_whole,
        )

    def _undominated(self, costs: np.ndarray) -> np.ndarray:
        """Returns the rows that none dominates; of those of equal times, the smallest."""
        if len(self._columns) == len(_ALL_COLUMNS) or len(costs) < 2:
            return undominated(costs)
        by_size = np.argsort(costs[:, FIXED] + costs[:, ACTIVATION] + costs[:, WORKING], kind="stable")
        return by_size[undominated(costs[by_size][:, self._columns])]

    def _segment(self, segment: SegmentCosts) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the numbers, the costs, the entry layouts and the exit layouts of a segment's strategies.

        A strategy that another one of the same layouts dominates is in no choice that is kept.
        """
        if segment.kind not in self._segments:
            known = segment.costs
            costs = _columns(known)
            entries, exits = known.column("entry"), known.column("exit")
            alike: dict[tuple[int, int], list[int]] = {}
            for place, key in enumerate(zip(entries.tolist(), exits.tolist(), strict=True)):
                alike.setdefault(key, []).append(place)
            groups = [np.asarray(places) for places in alike.values()]
            kept = np.sort(np.concatenate([group[self._undominated(costs[group])] for group in groups]))
            self._segments[segment.kind] = kept, costs[kept], entries[kept], exits[kept]
        return self._segments[segment.kind]


def _columns(costs: CostTable) -> Float[np.ndarray, "strategies 5"]:
    sizes = costs.fixed_bytes, costs.column("activation_bytes"), costs.column("working_bytes")
    return np.column_stack([costs.microbatch_s, costs.column("step_s"), *sizes]).astype(np.float64)
