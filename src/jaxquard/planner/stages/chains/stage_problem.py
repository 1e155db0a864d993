"""The assignment of segments to stages as a search on numbers: the options of each stage, and bounds from its end.

    time = the sum over stages of `fills_s` + a weighted mean of
           (the maximum over actors of the sum of its stages' `loads_s`, chunks x the maximum over stages of `loads_s`)

under a limit on each actor's memory. With one stage per actor both maxima are the same, and the limit decides on each
option alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxquard.planner.stages.chains.dominance import undominated_pairs
from jaxquard.planner.stages.chains.range_options import ACTIVATION, FIXED, STEP, TIME, WORKING, OptionTable
from jaxquard.planner.stages.schedule_profile import ScheduleProfile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageOptions:
    """The options of one stage, by their first segment.

    Attributes:
        options: their places in the table.
        bounds: where the options of each first segment begin, and at last where they end.
        begins: the first segments of any option.
        firsts: where the options of these begin.
    """

    options: Int[np.ndarray, " options"]
    starts: Int[np.ndarray, " options"]
    stops: Int[np.ndarray, " options"]
    fills_s: Float[np.ndarray, " options"]
    loads_s: Float[np.ndarray, " options"]
    bounds: Int[np.ndarray, " segments_and_one"]
    begins: Int[np.ndarray, " begins"]
    firsts: Int[np.ndarray, " begins"]


class StageProblem:
    """One chain, one schedule, one limit.

    Args:
        crossings_s: for each stage, the weighted time of the transfer into it, for each segment with which it begins.
        memory_limit_bytes: of a device; infinite for no limit.
        minimises_memory: the fullest actor's memory takes the place of time; with several stages on an actor, a bound
            on it: the sum of the stages' own peaks.
        shares_memory: each stage has a fixed share of its actor's memory, by the activations that it keeps. What fits
            then, fits; other assignments fit as well.
        max_load_s: of a stage; assignments with a larger one are not looked for.
        ends_s: bounds from below on the load of the first segments, of none to all of them: with the limit they say
            how early and how late a stage can begin and end.
    """

    def __init__(
        self,
        table: OptionTable,
        profile: ScheduleProfile,
        *,
        crossings_s: Float[np.ndarray, "stages segments"],
        memory_limit_bytes: float = np.inf,
        minimises_memory: bool = False,
        shares_memory: bool = False,
        max_load_s: float = np.inf,
        ends_s: Float[np.ndarray, " segments_and_one"] | None = None,
    ) -> None:
        self.max_load_s, self._ends_s = max_load_s, ends_s
        self.table, self.profile, self.limit_bytes = table, profile, memory_limit_bytes
        self.minimises_memory = minimises_memory
        self.num_segments = len(table.bounds) - 1
        self.num_stages, self.actor_of = profile.num_stages, profile.actor_of
        self.is_looped = profile.num_chunks > 1
        weight = profile.stage_weight if self.is_looped and not minimises_memory else 0.0
        self._weights = 1 - weight, weight * profile.num_chunks
        self.has_limit = bool(np.isfinite(memory_limit_bytes))
        self._crossings_s = np.zeros_like(crossings_s) if minimises_memory else crossings_s
        self._loads_s = (profile.num_microbatches - 1) * table.costs[:, TIME] + table.costs[:, STEP]
        self._fills_s = profile.fill_weight * table.costs[:, TIME] * (not minimises_memory)
        self._ranges = table.starts * (self.num_segments + 1) + table.stops
        self._candidates: dict[tuple[int, float], np.ndarray] = {}
        self._limits_bytes = (
            self._shares() * memory_limit_bytes if shares_memory else [memory_limit_bytes] * self.num_stages
        )
        self._most_kept = profile.most_kept if self.has_limit or minimises_memory else np.zeros(self.num_stages)
        self.stages = [self._stage(stage) for stage in range(self.num_stages)]

    def _stage(self, stage: int) -> StageOptions:
        table, kept = self.table, int(self._most_kept[stage])
        options = self._fitting(kept, float(self._limits_bytes[stage]))
        starts, stops = table.starts[options], table.stops[options]
        rest = self.num_stages - 1 - stage
        is_possible = (starts == 0) if stage == 0 else (starts >= stage)
        is_possible &= (stops == self.num_segments) if rest == 0 else (stops <= self.num_segments - rest)
        if self._ends_s is not None and np.isfinite(self.max_load_s):
            ends_s, limit_s = self._ends_s, self.max_load_s * (1 + 1e-9)
            is_possible &= (ends_s <= stage * limit_s)[starts] & (ends_s[-1] - ends_s <= rest * limit_s)[stops]
        options = options[is_possible]
        starts = table.starts[options]
        bounds = starts.searchsorted(np.arange(self.num_segments + 1))
        begins = (bounds[:-1] < bounds[1:]).nonzero()[0]
        return StageOptions(
            options=options,
            starts=starts,
            stops=table.stops[options],
            fills_s=self._fills_s[options] + self._crossings_s[stage, starts],
            loads_s=self._loads(kept)[options],
            bounds=bounds,
            begins=begins,
            firsts=bounds[begins],
        )

    def _shares(self) -> np.ndarray:
        """Returns the share of each stage in the memory of its actor, if all stages were alike."""
        fixed, activation = self.table.costs[:, [FIXED, ACTIVATION]].sum(axis=0)
        sizes = fixed + self.profile.most_kept * activation + 1.0
        return sizes / np.bincount(self.actor_of, weights=sizes)[list(self.actor_of)]

    def _fitting(self, kept: int, limit_bytes: float) -> np.ndarray:
        """Returns the options that fit alone with so many activations, and are not dominated as far as that is known.

        With several stages on an actor the memory of one matters to the others.
        """
        key = kept, limit_bytes
        if key not in self._candidates:
            options = np.arange(len(self.table.starts))
            if self.has_limit:
                options = options[self._alone_bytes(kept) <= limit_bytes]
            if not (self.has_limit and self.is_looped):
                loads_s, fills_s = self._loads(kept)[options], self._fills_s[options]
                options = options[undominated_pairs(self._ranges[options], loads_s, fills_s)]
            self._candidates[key] = options
        return self._candidates[key]

    def _loads(self, kept: int) -> np.ndarray:
        return self._alone_bytes(kept) if self.minimises_memory else self._loads_s

    def _alone_bytes(self, kept: int) -> np.ndarray:
        """Returns the memory of each option alone, at the peak of its activations."""
        costs = self.table.costs
        return costs[:, FIXED] + kept * costs[:, ACTIVATION] + costs[:, WORKING]

    def peak_bytes(self, options: Sequence[int]) -> Float[np.ndarray, " actors"]:
        """Returns the memory of each actor, for the option of each stage."""
        costs, profile = self.table.costs[list(options)], self.profile
        actors = np.asarray(self.actor_of)
        fixed = np.bincount(actors, weights=costs[:, FIXED], minlength=profile.num_actors)
        kept = np.zeros(profile.num_actors)
        np.maximum.at(kept, profile.kept_actors, profile.kept @ costs[:, ACTIVATION])
        working = np.zeros(profile.num_actors)
        np.maximum.at(working, actors, costs[:, WORKING])
        return fixed + kept + working

    def time_s(self, options: Sequence[int]) -> float:
        """Returns the estimated time of a step, for the option of each stage."""
        options = list(options)
        crossings_s = self._crossings_s[np.arange(self.num_stages), self.table.starts[options]]
        stages_s = self._loads_s[options]
        actors_s = np.bincount(self.actor_of, weights=stages_s, minlength=self.profile.num_actors)
        busiest_s = self.combine(actors_s.max(), stages_s.max())
        return float(self._fills_s[options].sum() + crossings_s.sum() + busiest_s)

    def with_shares(self) -> "StageProblem":
        """Returns the same problem with a share of the memory for each stage."""
        return StageProblem(
            self.table,
            self.profile,
            crossings_s=self._crossings_s,
            memory_limit_bytes=self.limit_bytes,
            minimises_memory=self.minimises_memory,
            shares_memory=True,
            max_load_s=self.max_load_s,
            ends_s=self._ends_s,
        )

    def combine(self, actor_s: Any, stage_s: Any) -> Any:
        """Returns the weighted mean of the largest load of an actor and that of a stage."""
        if not self._weights[1]:
            return actor_s
        return self._weights[0] * actor_s + self._weights[1] * stage_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completions:
    """Bounds on what is left, from each stage and first segment on; infinite where no assignment exists.

    Attributes:
        fills_s: the minimum of the sum of the stages' fills.
        bottlenecks_s: the minimum of the largest load of a stage.
        loads_s: the minimum of the sum of the stages' loads.
    """

    fills_s: Float[np.ndarray, "stages_and_one segments_and_one"]
    bottlenecks_s: Float[np.ndarray, "stages_and_one segments_and_one"]
    loads_s: Float[np.ndarray, "stages_and_one segments_and_one"]

    def bound_s(self, problem: StageProblem) -> float:
        """Returns a bound on the time of every assignment."""
        stage_s, mean_s = self.bottlenecks_s[0, 0], self.loads_s[0, 0] / problem.profile.num_actors
        return float(self.fills_s[0, 0] + problem.combine(max(stage_s, mean_s), stage_s))


def bound_completions(problem: StageProblem) -> Completions:
    """Walks the stages from the last to the first, for each of the three bounds alone."""
    shape = (problem.num_stages + 1, problem.num_segments + 1)
    fills_s, bottlenecks_s, loads_s = (np.full(shape, np.inf) for _ in range(3))
    for bounds_s in (fills_s, bottlenecks_s, loads_s):
        bounds_s[-1, -1] = 0.0
    for stage in reversed(range(problem.num_stages)):
        own = problem.stages[stage]
        if not len(own.options):
            continue
        fills_s[stage] = _minima(own, own.fills_s + fills_s[stage + 1, own.stops], shape[1])
        largest_s = np.maximum(own.loads_s, bottlenecks_s[stage + 1, own.stops])
        bottlenecks_s[stage] = _minima(own, largest_s, shape[1])
        loads_s[stage] = _minima(own, own.loads_s + loads_s[stage + 1, own.stops], shape[1])
    return Completions(fills_s=fills_s, bottlenecks_s=bottlenecks_s, loads_s=loads_s)


def _minima(own: StageOptions, values: np.ndarray, length: int) -> np.ndarray:
    """Returns the minimum over the options of each first segment."""
    found = np.full(length, np.inf)
    found[own.begins] = np.minimum.reduceat(values, own.firsts)
    return found


def find_incumbents(problem: StageProblem, completions: Completions, *, load_limits: int = 3) -> list[list[int]]:
    """Returns assignments that are likely to be fast: the smallest fills under a few limits on the load of a stage."""
    bottleneck_s = float(completions.bottlenecks_s[0, 0])
    if not np.isfinite(bottleneck_s):
        return []
    found = []
    for widening in np.linspace(0.0, 0.2, load_limits):
        path = _smallest_fill(problem, bottleneck_s * (1 + widening) * (1 + 1e-12))
        if path is not None and path not in found:
            found.append(path)
    return found


def _smallest_fill(problem: StageProblem, limit_s: float) -> list[int] | None:
    """Returns the options of the smallest sum of fills, each of a load within the limit."""
    length = problem.num_segments + 1
    rests_s = np.full(length, np.inf)
    rests_s[-1] = 0.0
    totals_s = []
    for own in reversed(problem.stages):
        total_s = np.where(own.loads_s <= limit_s, own.fills_s + rests_s[own.stops], np.inf)
        totals_s.append(total_s)
        rests_s = _minima(own, total_s, length)
    if not np.isfinite(rests_s[0]):
        return None
    place, path = 0, []
    for own, total_s in zip(problem.stages, reversed(totals_s), strict=True):
        first, end = own.bounds[place], own.bounds[place + 1]
        chosen = first + int(np.argmin(total_s[first:end]))
        path.append(int(own.options[chosen]))
        place = int(own.stops[chosen])
    return path
