"""Assigns the segments of a chain to the stages of a pipeline, and a strategy to each, by the estimated time.

First as if there were no limit of memory: what is found is the answer if it fits. If not, slower choices that need less
memory are looked at as well. The estimate, and why it is a good one, is in `schedule_profile`; the choices of a run are
in `stage_options`, the search over stages in `stage_search`. In chains of few segments all choices are kept, and
nothing is faster; in longer ones some stand for the others. The memory of an actor is

    the fixed bytes of its stages + the largest sum of activations that the schedule's order keeps at the same time
        + the largest working bytes of a stage, the values that enter and leave it among them
"""

import functools
from collections.abc import Sequence

import numpy as np

from jaxquard.errors import PlanError
from jaxquard.planner.stages.equal_shares import EqualShares
from jaxquard.planner.stages.schedule_profile import ScheduleProfile, profile_schedule
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCosts, StageAssignment
from jaxquard.planner.stages.stage_options import FEW_CHOICES, MANY_CHOICES, StageOptions, list_stage_options
from jaxquard.planner.stages.stage_search import StageSearch
from jaxquard.simulate.actor_link import INSTANT, NO_LINKS, ActorLinks

# Where several assignments are asked for, those slower by at most this share come along: played, they may be faster.
_FINALIST_SLACK = 0.03
# A rise of the estimate by this share is due to the limit.
_LIMITED_RISE = 1e-3
# The smallest memory is looked for below what was found, so many times.
_MAX_DESCENTS = 20
# In chains of so few segments all choices are kept.
_FEW = 12
# In chains of more segments, stages begin only where few bytes enter: at most so many times the fewest nearby.
_LONG, _FEW_BYTES = 48, 2
# The longest stage of a long chain, over an equal share of its shortest time.
_MOST_SHARES = 4
# More than any device has, yet finite: memory is counted.
_NO_LIMIT_BYTES = 2.0**62


def assign_segments(
    chain: Sequence[SegmentCosts],
    shape: PipelineShape,
    *,
    memory_limit_bytes: int | None = None,
    links: ActorLinks = NO_LINKS,
    max_finalists: int = 1,
) -> tuple[StageAssignment, ...]:
    """Returns the assignments of the minimum estimated time, the fastest first; none if nothing fits the memory.

    Args:
        memory_limit_bytes: of a device; None for no limit.
        links: between actors; a pair that is not in it transfers in no time.
        max_finalists: how many to return at most; others than the first are little slower by the estimate.

    Raises:
        PlanError: if a segment has no strategy.
        ScheduleError: if the schedule does not exist, or not for so many stages and actors.
    """
    assigner = SegmentAssigner(chain)
    return assigner.assign(shape, memory_limit_bytes=memory_limit_bytes, links=links, max_finalists=max_finalists)


def is_long_chain(chain: Sequence[SegmentCosts]) -> bool:
    """Says whether a chain is so long that the search over many shapes must be brief."""
    return len(chain) > _LONG


class SegmentAssigner:
    """Assigns one chain under many shapes and limits; what they share is found once."""

    def __init__(self, chain: Sequence[SegmentCosts]) -> None:
        self.chain = tuple(chain)
        for place, segment in enumerate(self.chain):
            if not segment.strategies:
                raise PlanError(
                    f"segment {place} of {len(self.chain)} has no strategy with a price. Leave its mesh out, or use "
                    "another pricer."
                )
        self._known_options: dict[tuple[int, float | None, bool], StageOptions] = {}
        self._estimate_s = functools.cache(self._find_estimate_s)

    @functools.cached_property
    def _minimum_s(self) -> tuple[float, float]:
        """The sums of the minima of what a microbatch takes, and of what runs once a step."""
        kinds = {segment.kind: segment.costs for segment in self.chain}
        minima = {kind: (costs.microbatch_s.min(), costs.column("step_s").min()) for kind, costs in kinds.items()}
        time_s, step_s = np.sum([minima[segment.kind] for segment in self.chain], axis=0).tolist()
        return time_s, step_s

    @functools.cached_property
    def _begins(self) -> tuple[int, ...]:
        """The segments with which stages may begin."""
        return 0, *(place for place, segment in enumerate(self.chain) if place and segment.can_begin_stage)

    @functools.cached_property
    def _cheap_begins(self) -> tuple[int, ...]:
        """Of a long chain, the segments with which stages begin if that is enough; of others all."""
        return find_cheap_begins(self.chain, self._begins) if self.is_long else self._begins

    @functools.cached_property
    def _shares(self) -> EqualShares:
        return EqualShares(self.chain, self._begins)

    @property
    def is_long(self) -> bool:
        """True for a chain so long that the search over many shapes must be brief."""
        return is_long_chain(self.chain)

    def bound_s(self, shape: PipelineShape, *, counts_step: bool = True) -> float:
        """Returns a bound on the estimated time of any assignment, without playing the schedule.

        No schedule's fill is shorter than its actors' first tasks and a forward through all other actors.

        Args:
            counts_step: whether it has what runs once a step; the rest holds for all storages of state.
        """
        time_s, step_s = self._minimum_s
        num_chunks = shape.num_stages // shape.num_actors
        fill_s = (num_chunks + (shape.num_actors - 1) / 3) / shape.num_stages * time_s
        return fill_s + ((shape.num_microbatches - 1) * time_s + step_s * counts_step) / shape.num_actors

    def estimate_s(self, shape: PipelineShape, memory_limit_bytes: int | None) -> float:
        """Returns about the time of the best assignment that fits, without looking for it; infinite if nothing does."""
        return self._estimate_s(shape, _in_bytes(memory_limit_bytes))

    def _find_estimate_s(self, shape: PipelineShape, limit_bytes: float) -> float:
        if shape.num_stages > len(self._begins):
            return np.inf
        return self._shares.estimate_s(profile_schedule(shape), limit_bytes)

    def smallest_share_bytes(self, num_actors: int) -> float:
        """Returns the smallest memory of an actor's equal share, with the activations of one microbatch."""
        return self._shares.smallest_bytes() / num_actors

    def assign(
        self,
        shape: PipelineShape,
        *,
        memory_limit_bytes: int | None = None,
        links: ActorLinks = NO_LINKS,
        max_finalists: int = 1,
        is_rough: bool = False,
    ) -> tuple[StageAssignment, ...]:
        """Returns the fastest assignments, as `assign_segments` does.

        Args:
            is_rough: keep few choices of strategies, if the chain has more than a few segments.
        """
        if shape.num_stages > len(self._begins):
            return ()
        profile, limit_bytes = profile_schedule(shape), _in_bytes(memory_limit_bytes)
        crossings_s, slack = self._crossings_s(profile, links), 1 + _FINALIST_SLACK * (max_finalists > 1)
        is_rough &= len(self.chain) > _FEW
        # Where memory makes an equal share slower, what is the fastest without a limit does not fit.
        is_small = self.estimate_s(shape, memory_limit_bytes) > self.estimate_s(shape, None) * (1 + _LIMITED_RISE)
        for counts_memory in (True,) if is_small else (False, True):
            options = self._options(shape.num_stages, limit_bytes if counts_memory else None, is_rough=is_rough)
            search = StageSearch(
                options,
                profile,
                crossings_s=crossings_s,
                memory_limit_bytes=limit_bytes if counts_memory else np.inf,
            )
            found = search.find(slack=slack, is_brief=is_rough and self.is_long)
            if not found or search.peak_bytes(found[0]).max() <= limit_bytes:
                break
        fitting = [path for path in found if search.peak_bytes(path).max() <= limit_bytes]
        return tuple(_assignment(options, search, path) for path in fitting[:max_finalists])

    def minimum_memory(self, shape: PipelineShape) -> StageAssignment | None:
        """Returns the assignment of the smallest memory; None if the chain has too few boundaries for the stages."""
        if shape.num_stages > len(self._begins):
            return None
        profile, limit_bytes, best = profile_schedule(shape), _NO_LIMIT_BYTES, None
        options = self._options(shape.num_stages, limit_bytes, is_rough=len(self.chain) > _FEW)
        for _ in range(_MAX_DESCENTS):
            search = StageSearch(
                options,
                profile,
                crossings_s=np.zeros((shape.num_stages, len(self.chain))),
                memory_limit_bytes=limit_bytes,
                minimises_memory=True,
            )
            sizes = {path: search.peak_bytes(path).max() for path in search.find(slack=_NO_LIMIT_BYTES)}
            if not sizes:
                break
            path = min(sizes, key=lambda path: sizes[path])
            best, limit_bytes = _assignment(options, search, path), sizes[path] - 1
            if profile.num_chunks == 1:
                break
        return best

    def _options(self, num_stages: int, memory_limit_bytes: float | None, *, is_rough: bool) -> StageOptions:
        """Returns the choices of the runs that may be one of so many stages; without a limit the fastest ones alone."""
        key = num_stages if self.is_long else min(num_stages, 2), memory_limit_bytes, is_rough
        if key not in self._known_options:
            begins = self._cheap_begins if num_stages <= len(self._cheap_begins) else self._begins
            self._known_options[key] = list_stage_options(
                self.chain,
                begins if num_stages > 1 else begins[:1],
                counts_memory=memory_limit_bytes is not None,
                memory_limit_bytes=np.inf if memory_limit_bytes is None else memory_limit_bytes,
                max_choices=FEW_CHOICES if is_rough else MANY_CHOICES,
                max_time_s=_MOST_SHARES * self._minimum_s[0] / num_stages if self.is_long else np.inf,
            )
        return self._known_options[key]

    def _crossings_s(self, profile: ScheduleProfile, links: ActorLinks) -> np.ndarray:
        """Returns the weighted time of the transfer into each stage, for each segment with which it begins."""
        crossings_s = np.zeros((profile.num_stages, len(self.chain)))
        input_bytes = np.asarray([0, *(segment.input_bytes for segment in self.chain[1:])], dtype=np.float64)
        for stage, (source, target) in enumerate(zip(profile.actor_of, profile.actor_of[1:], strict=False), 1):
            if source != target:
                link = links.get((source, target), INSTANT)
                times_s = link.latency_s + input_bytes / link.bandwidth_bytes_per_s
                crossings_s[stage] = profile.transfer_weight * times_s
        return crossings_s


def find_cheap_begins(chain: Sequence[SegmentCosts], begins: Sequence[int]) -> tuple[int, ...]:
    """Returns the segments which few bytes enter: at most `_FEW_BYTES` times the fewest nearby."""
    reach = max(1, len(chain) // _LONG)
    sizes = np.full(len(chain) + 2 * reach, np.inf)
    sizes[reach + np.asarray(begins)] = [chain[place].input_bytes for place in begins]
    sizes[reach] = np.inf
    nearby = np.lib.stride_tricks.sliding_window_view(sizes, 2 * reach + 1).min(axis=1)
    own = sizes[reach : reach + len(chain)]
    return 0, *np.flatnonzero(np.isfinite(own) & (own <= _FEW_BYTES * nearby)).tolist()


def _in_bytes(memory_limit_bytes: int | None) -> float:
    return np.inf if memory_limit_bytes is None else float(memory_limit_bytes)


def _assignment(options: StageOptions, search: StageSearch, path: Sequence[int]) -> StageAssignment:
    return StageAssignment(
        stops=tuple(options.stops[list(path)].tolist()),
        strategies=tuple(strategy for option in path for strategy in options.strategies(option)),
        time_s=search.time_s(path),
        peak_bytes=tuple(round(size) for size in search.peak_bytes(path).tolist()),
    )
