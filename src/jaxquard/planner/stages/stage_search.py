"""The dynamic program over stages: chooses a run of segments for each stage, and its strategies.

    time = the sum over stages of `fills_s` + a weighted mean of
           (the maximum over actors of the sum of its stages' `loads_s`, chunks x the maximum over stages of `loads_s`)

A label is a way to assign the segments before its position to the stages so far. Of two labels at one position, the one
that is not smaller in anything (the sum of fills, the largest loads, the loads and the memory of actors that get
further stages) is left out. So is one that, completed at the bounds, is slower than an assignment that is known. With
one stage per actor nothing but fill and load is left, and the labels are few. With several, only the best by their
bounds and those of the smallest memory stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Int

from jaxquard.planner.stages.pareto import undominated, undominated_pairs
from jaxquard.planner.stages.schedule_profile import ScheduleProfile
from jaxquard.planner.stages.stage_options import ACTIVATION, FIXED, STEP, TIME, WORKING, StageOptions

# Labels kept after a stage, of actors with several stages: in chains of few segments, and in longer ones.
_FEW_SEGMENTS, _MANY_LABELS, _FEW_LABELS = 12, 1000, 60
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stage:
    """The options of one stage, ordered by their first segment.

    Attributes:
        options: their places in the table.
        bounds: where the options of each first segment begin, and at last where they end.
    """

    options: Int[np.ndarray, " options"]
    starts: Int[np.ndarray, " options"]
    stops: Int[np.ndarray, " options"]
    fills_s: Float[np.ndarray, " options"]
    loads_s: Float[np.ndarray, " options"]
    bounds: Int[np.ndarray, " segments_and_one"]

    def minima(self, values: np.ndarray) -> np.ndarray:
        """Returns the minimum over the options of each first segment; infinite where there is none."""
        found = np.full(len(self.bounds), np.inf)
        np.minimum.at(found, self.starts, values)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Labels:
    """Labels after a stage.

    Attributes:
        positions: the first segment that is not assigned.
        parents: the label before the stage.
        options: of the stage.
        fills_s: the sums so far.
        finished_s: the largest load of an actor whose stages are all there.
        stages_s: the largest load of a stage.
        loads_s: of each actor that gets further stages, else 0; without columns if each actor has one stage.
        kept_bytes: the same of fixed bytes and activations, for each row of the profile.
        working_bytes: the same of working bytes.
    """

    positions: Int[np.ndarray, " labels"]
    parents: Int[np.ndarray, " labels"]
    options: Int[np.ndarray, " labels"]
    fills_s: Float[np.ndarray, " labels"]
    finished_s: Float[np.ndarray, " labels"]
    stages_s: Float[np.ndarray, " labels"]
    loads_s: Float[np.ndarray, "labels actors"]
    kept_bytes: Float[np.ndarray, "labels rows"]
    working_bytes: Float[np.ndarray, "labels actors"]

    def __getitem__(self, index: np.ndarray) -> "_Labels":
        return _Labels(**{one.name: getattr(self, one.name)[index] for one in fields(self)})


class StageSearch:
    """One chain, one schedule, one limit.

    Args:
        crossings_s: for each stage, the weighted time of the transfer into it, for each segment with which it begins.
        memory_limit_bytes: of a device; infinite for no limit.
        minimises_memory: the sum of the peaks of an actor's stages takes the place of time.
        shares_memory: each stage has a fixed share of its actor's memory, by the activations that it keeps. What fits
            then, fits; other assignments fit as well.
    """

    def __init__(
        self,
        table: StageOptions,
        profile: ScheduleProfile,
        *,
        crossings_s: Float[np.ndarray, "stages segments"],
        memory_limit_bytes: float = np.inf,
        minimises_memory: bool = False,
        shares_memory: bool = False,
    ) -> None:
        self._table, self._profile, self._limit_bytes = table, profile, memory_limit_bytes
        self._shares_memory = shares_memory
        self._crossings_s, self._minimises_memory = crossings_s * (not minimises_memory), minimises_memory
        self._is_looped = profile.num_chunks > 1
        self._has_bytes = self._is_looped and bool(np.isfinite(memory_limit_bytes)) and not shares_memory
        weight = profile.stage_weight if self._is_looped and not minimises_memory else 0.0
        self._weights = 1 - weight, weight * profile.num_chunks
        self._loads_s = (profile.num_microbatches - 1) * table.costs[:, TIME] + table.costs[:, STEP]
        self._fills_s = profile.fill_weight * table.costs[:, TIME] * (not minimises_memory)
        self._stages = [self._list_options(stage) for stage in range(profile.num_stages)]
        self._fills_left_s, self._largest_left_s, self._loads_left_s = self._bound_rests()

    def _list_options(self, stage: int) -> _Stage:
        table, length = self._table, self._table.num_segments
        left = self._profile.num_stages - 1 - stage
        is_possible = (table.starts == 0) if stage == 0 else (table.starts >= stage)
        is_possible &= (table.stops == length) if left == 0 else (table.stops <= length - left)
        alone_bytes = table.costs @ self._weights_of_bytes(stage)
        share = self._share_of_memory(stage) if self._shares_memory else 1.0
        options = np.flatnonzero(is_possible & (alone_bytes <= share * self._limit_bytes))
        loads_s = alone_bytes if self._minimises_memory else self._loads_s
        if not self._has_bytes:
            ranges = table.starts[options] * (length + 1) + table.stops[options]
            options = options[undominated_pairs(ranges, loads_s[options], self._fills_s[options])]
        starts = table.starts[options]
        return _Stage(
            options=options,
            starts=starts,
            stops=table.stops[options],
            fills_s=self._fills_s[options] + self._crossings_s[stage, starts],
            loads_s=loads_s[options],
            bounds=starts.searchsorted(np.arange(length + 2)),
        )

    def _share_of_memory(self, stage: int) -> float:
        """Returns the share of a stage in the memory of its actor, if all stages were alike."""
        fixed, activation = self._table.costs[:, [FIXED, ACTIVATION]].sum(axis=0)
        sizes = fixed + self._profile.most_kept * activation + 1.0
        actors = np.asarray(self._profile.actor_of)
        return float(sizes[stage] / sizes[actors == actors[stage]].sum())

    def _weights_of_bytes(self, stage: int) -> Float[np.ndarray, " 5"]:
        """Returns the weights of the columns of costs in the memory of a stage, at the peak of its activations."""
        weights = np.zeros(5)
        weights[[FIXED, ACTIVATION, WORKING]] = 1, self._profile.most_kept[stage], 1
        return weights

    def _bound_rests(self) -> Float[np.ndarray, "3 stages_and_one segments_and_two"]:
        """Returns bounds on what is left from each stage and first segment on; infinite where nothing is possible.

        They are the minimum of the sum of fills, of the largest load of a stage, and of the sum of loads.
        """
        bounds_s = np.full((3, self._profile.num_stages + 1, self._table.num_segments + 2), np.inf)
        bounds_s[:, -1, -2] = 0.0
        for stage in reversed(range(self._profile.num_stages)):
            own, (fills_s, largest_s, loads_s) = self._stages[stage], bounds_s[:, stage + 1]
            bounds_s[0, stage] = own.minima(own.fills_s + fills_s[own.stops])
            bounds_s[1, stage] = own.minima(np.maximum(own.loads_s, largest_s[own.stops]))
            bounds_s[2, stage] = own.minima(own.loads_s + loads_s[own.stops])
        return bounds_s

    def find(self, *, slack: float = 1.0, is_brief: bool = False) -> list[tuple[int, ...]]:
        """Returns the options of the stages of assignments that fit, the fastest first.

        Args:
            slack: assignments that are slower than the fastest by at most this factor come along.
            is_brief: where actors share their memory among stages, take what is found at once, if it fits.
        """
        if not np.isfinite(self._fills_left_s[0, 0]):
            return []
        known = self._find_first()
        if self._has_bytes and not self._minimises_memory:
            known += self._with_shares()._find_first()
        known = [path for path in known if self.peak_bytes(path).max() <= self._limit_bytes]
        known_s = min((self.time_s(path) for path in known), default=np.inf) * slack * _ROUNDING
        steps = [self._start()]
        if not (known and self._has_bytes and is_brief):
            for stage in range(self._profile.num_stages):
                steps.append(self._shorten(self._extend(steps[-1], stage, known_s), stage, known_s))
        found = {*known, *(_trace_back(steps, label) for label in range(len(steps[-1].positions) * (len(steps) > 1)))}
        times_s = {path: self.time_s(path) for path in found}
        return sorted((path for path in found if times_s[path] <= known_s), key=lambda path: times_s[path])

    def _with_shares(self) -> "StageSearch":
        return StageSearch(
            self._table,
            self._profile,
            crossings_s=self._crossings_s,
            memory_limit_bytes=self._limit_bytes,
            shares_memory=True,
        )

    def _find_first(self) -> list[tuple[int, ...]]:
        """Returns the assignments of the smallest fills, for a few limits on the load of a stage."""
        smallest_s = float(self._largest_left_s[0, 0])
        if not np.isfinite(smallest_s):
            return []
        return [self._smallest_fill(smallest_s * _ROUNDING * widening) for widening in (1.0, 1.05, 1.2)]

    def _smallest_fill(self, limit_s: float) -> tuple[int, ...]:
        rests_s = np.full(self._table.num_segments + 2, np.inf)
        rests_s[-2] = 0.0
        totals_s = []
        for own in reversed(self._stages):
            totals_s.append(np.where(own.loads_s <= limit_s, own.fills_s + rests_s[own.stops], np.inf))
            rests_s = own.minima(totals_s[-1])
        place, path = 0, []
        for own, total_s in zip(self._stages, reversed(totals_s), strict=True):
            first, end = own.bounds[place], own.bounds[place + 1]
            chosen = first + int(np.argmin(total_s[first:end]))
            path.append(int(own.options[chosen]))
            place = int(own.stops[chosen])
        return tuple(path)

    def _start(self) -> _Labels:
        num_actors = self._profile.num_actors * self._is_looped
        none, zero = np.zeros(1, dtype=np.int64), np.zeros(1)
        return _Labels(
            positions=none,
            parents=none,
            options=none,
            fills_s=zero,
            finished_s=zero,
            stages_s=zero,
            loads_s=np.zeros((1, num_actors)),
            kept_bytes=np.zeros((1, len(self._profile.kept) * self._has_bytes)),
            working_bytes=np.zeros((1, num_actors * self._has_bytes)),
        )

    def _extend(self, labels: _Labels, stage: int, known_s: float) -> _Labels:
        """Continues every label with every option of the stage that begins at its position, unless it is too slow."""
        own, actor = self._stages[stage], self._profile.actor_of[stage]
        counts = own.bounds[labels.positions + 1] - own.bounds[labels.positions]
        parents = np.repeat(np.arange(len(counts)), counts)
        chosen = np.arange(len(parents)) + np.repeat(own.bounds[labels.positions] - np.cumsum(counts) + counts, counts)
        # From where nothing is left to choose, no assignment ends.
        is_open = np.isfinite(self._largest_left_s[stage + 1, own.stops[chosen]])
        parents, chosen = parents[is_open], chosen[is_open]
        largest_s = np.maximum(own.loads_s[chosen], self._largest_left_s[stage + 1, own.stops[chosen]])
        fills_s = labels.fills_s[parents] + own.fills_s[chosen] + self._fills_left_s[stage + 1, own.stops[chosen]]
        actors_s, stages_s = labels.finished_s[parents], labels.stages_s[parents]
        bounds_s = fills_s + self._combine(np.maximum(actors_s, largest_s), np.maximum(stages_s, largest_s))
        parents, chosen = parents[bounds_s <= known_s], chosen[bounds_s <= known_s]
        grown, is_last = labels[parents], actor not in self._profile.actor_of[stage + 1 :]
        load_s, fits = own.loads_s[chosen], np.ones(len(chosen), dtype=bool)
        if self._is_looped:
            load_s = load_s + grown.loads_s[:, actor]
            grown.loads_s[:, actor] = load_s * (not is_last)
        if self._has_bytes:
            fits = self._add_bytes(grown, own.options[chosen], stage, is_last=is_last)
        return _Labels(
            positions=own.stops[chosen],
            parents=parents,
            options=own.options[chosen],
            fills_s=grown.fills_s + own.fills_s[chosen],
            finished_s=np.maximum(grown.finished_s, load_s) if is_last else grown.finished_s,
            stages_s=np.maximum(grown.stages_s, own.loads_s[chosen]),
            loads_s=grown.loads_s,
            kept_bytes=grown.kept_bytes,
            working_bytes=grown.working_bytes,
        )[fits]

    def _add_bytes(self, grown: _Labels, options: np.ndarray, stage: int, *, is_last: bool) -> np.ndarray:
        """Adds the memory of the stage to its actor's, in place; returns which labels fit."""
        profile, actor, costs = self._profile, self._profile.actor_of[stage], self._table.costs[options]
        rows, kept, working = np.flatnonzero(profile.kept_actors == actor), grown.kept_bytes, grown.working_bytes
        kept[:, rows] += costs[:, [FIXED]] + costs[:, [ACTIVATION]] * profile.kept[rows, stage]
        working[:, actor] = np.maximum(working[:, actor], costs[:, WORKING])
        fits = kept[:, rows].max(axis=1) + working[:, actor] <= self._limit_bytes
        if is_last:
            kept[:, rows] = working[:, actor] = 0.0
        return fits

    def _shorten(self, labels: _Labels, stage: int, known_s: float) -> _Labels:
        """Leaves out labels that are dominated, or too slow by their bound, or too many."""
        if not self._is_looped:
            return labels[undominated_pairs(labels.positions, labels.finished_s, labels.fills_s)]
        bounds_s = self._bounds_s(labels, stage)
        chosen = np.flatnonzero(bounds_s <= known_s)
        max_labels = _MANY_LABELS if self._table.num_segments <= _FEW_SEGMENTS else _FEW_LABELS
        chosen = self._best(labels, bounds_s, chosen, 4 * max_labels)
        chosen = chosen[_undominated(labels[chosen])]
        return labels[self._best(labels, bounds_s, chosen, max_labels)]

    def _best(self, labels: _Labels, bounds_s: np.ndarray, chosen: np.ndarray, max_labels: int) -> np.ndarray:
        if len(chosen) <= max_labels:
            return chosen
        # Among equal bounds, those whose stages so far are the most even.
        fastest = np.lexsort((labels.loads_s[chosen].max(axis=1), bounds_s[chosen]))[:max_labels]
        if self._has_bytes:
            smallest = np.argsort(labels.kept_bytes[chosen].max(axis=1), kind="stable")[: max_labels // 2]
            fastest = np.union1d(fastest[: max_labels // 2], smallest)
        return np.sort(chosen[fastest])

    def _bounds_s(self, labels: _Labels, stage: int) -> np.ndarray:
        """Returns a bound on the time of each label's best completion."""
        later, largest_s = sorted(set(self._profile.actor_of[stage + 1 :])), self._largest_left_s[stage + 1]
        actors_s = np.maximum(labels.finished_s, largest_s[labels.positions])
        stages_s = np.maximum(labels.stages_s, largest_s[labels.positions])
        if later:
            shared_s = labels.loads_s[:, later].sum(axis=1) + self._loads_left_s[stage + 1, labels.positions]
            actors_s = np.maximum(actors_s, np.maximum(labels.loads_s.max(axis=1), shared_s / len(later)))
        fills_s = labels.fills_s + self._fills_left_s[stage + 1, labels.positions]
        return fills_s + self._combine(actors_s, stages_s)

    def _combine(self, actor_s: np.ndarray, stage_s: np.ndarray) -> np.ndarray:
        """Returns the weighted mean of the largest load of an actor and that of a stage."""
        return self._weights[0] * actor_s + self._weights[1] * stage_s

    def time_s(self, path: Sequence[int]) -> float:
        """Returns the time that is minimised, for the option of each stage."""
        options, profile = list(path), self._profile
        weights = [self._weights_of_bytes(stage) for stage in range(profile.num_stages)]
        sizes = np.einsum("ij,ij->i", self._table.costs[options], weights)
        stages_s = sizes if self._minimises_memory else self._loads_s[options]
        actors_s = np.bincount(profile.actor_of, weights=stages_s)
        crossings_s = self._crossings_s[np.arange(profile.num_stages), self._table.starts[options]]
        busiest_s = self._combine(actors_s.max(), stages_s.max())
        return float(self._fills_s[options].sum() + crossings_s.sum() + busiest_s)

    def peak_bytes(self, path: Sequence[int]) -> Float[np.ndarray, " actors"]:
        """Returns the memory of each actor, for the option of each stage."""
        costs, profile = self._table.costs[list(path)], self._profile
        kept, working = np.zeros((2, profile.num_actors))
        np.maximum.at(kept, profile.kept_actors, profile.kept @ costs[:, ACTIVATION])
        np.maximum.at(working, np.asarray(profile.actor_of), costs[:, WORKING])
        return np.bincount(profile.actor_of, weights=costs[:, FIXED]) + kept + working


def _undominated(labels: _Labels) -> np.ndarray:
    sums_s = np.column_stack([labels.fills_s, labels.finished_s, labels.stages_s])
    costs = np.hstack([sums_s, labels.loads_s, labels.kept_bytes, labels.working_bytes])
    # Actors that have no stage yet, or none to come, have zeros alone.
    differs = (costs != costs[:1]).any(axis=0)
    differs[0] = True
    kept = [np.arange(0)]
    for position in np.unique(labels.positions):
        group = np.flatnonzero(labels.positions == position)
        kept.append(group[undominated(costs[group][:, differs])])
    return np.concatenate(kept)


def _trace_back(steps: Sequence[_Labels], label: int) -> tuple[int, ...]:
    options = []
    for labels in reversed(steps[1:]):
        options.append(int(labels.options[label]))
        label = int(labels.parents[label])
    return tuple(reversed(options))
