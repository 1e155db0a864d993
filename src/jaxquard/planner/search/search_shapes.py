"""Searches the space of configurations: stages for each by exact assignment, the most promising first.

A mesh is priced with one number of microbatches, and with others its costs are scaled by the rows of a microbatch,
which is near the truth where kernels are large. So the best meshes and numbers are then priced as they are.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxquard.errors import InfeasiblePlanError, PlanError
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.search.list_shapes import count_devices
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.stages.assign import MinimumMemory, SegmentAssigner
from jaxquard.planner.stages.configuration import PlanConfiguration
from jaxquard.planner.stages.play_assignment import PlayedAssignment, play_assignment
from jaxquard.planner.stages.segment_costs import SegmentCost, SegmentCosts, StageAssignment
from jaxquard.simulate.actor_link import ActorLinks, link_actors

# Configurations whose bound is this much slower than the best so far are not assigned.
_SLACK = 1.25
# Meshes with a number of microbatches that are priced as they are, after all were ranked.
_NUM_EXACT = 8
# The axes of a mesh and their sizes.
MeshAxes = tuple[tuple[str, int], ...]
# A bound on the time of a configuration, and the number of microbatches that its costs are scaled from.
Candidate = tuple[float, PlanConfiguration, int]
_TIMES = ("forward_s", "input_gradient_s", "weight_gradient_s", "recompute_s", "communication_s")
_SIZES = ("activation_bytes", "working_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundShape:
    """A configuration with its stages.

    Attributes:
        is_exact: whether it was priced with its own number of microbatches.
        name: of a baseline; "" for a plan of the search.
    """

    shape: PlanConfiguration
    assignment: StageAssignment
    played: PlayedAssignment
    is_exact: bool = True
    name: str = ""

    @property
    def time_s(self) -> float:
        """Seconds of the step."""
        return self.played.time_s


class ShapeSearch:
    """One search.

    Attributes:
        num_seen, num_pruned, num_priced, num_played: configurations so far.
        left_out: what the budget of time left out.
    """

    def __init__(
        self,
        shapes: Sequence[PlanConfiguration],
        pricing: StepPricing,
        *,
        memory_limit_bytes: int,
        time_budget_s: float | None = None,
        on_progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        self.shapes, self.pricing, self.memory_limit_bytes = shapes, pricing, memory_limit_bytes
        self._end_s = None if time_budget_s is None else time.monotonic() + time_budget_s / 2
        self._on_progress = on_progress
        self._assigners: dict[object, SegmentAssigner] = {}
        self._links: dict[tuple[int, int], ActorLinks] = {}
        self._smallest: tuple[MinimumMemory, PlanConfiguration] | None = None
        self.num_seen = self.num_pruned = self.num_priced = self.num_played = 0
        self.left_out: list[str] = []

    def run(self) -> list[FoundShape]:
        """Returns configurations with their stages, the fastest first.

        Raises:
            PlanError: if there is no configuration.
            InfeasiblePlanError: if none fits the memory.
        """
        references = self._price_meshes()
        candidates = self._candidates(references)
        ranked = self._assign_all(candidates, is_exact=False)
        if not ranked:
            self._raise_infeasible(candidates)
        exact = self._price_exactly(ranked)
        if not exact:
            self._raise_infeasible(candidates)
        return exact

    def choose_finalists(self, found: list[FoundShape], count: int) -> list[FoundShape]:
        """Returns the plans to run: the best with each number of actors, then the best of the others."""
        best: dict[int, FoundShape] = {}
        for one in found:
            best.setdefault(one.shape.num_actors, one)
        chosen = sorted(best.values(), key=lambda one: one.time_s)
        seen = {_kind(one.shape) for one in chosen}
        for one in found:
            if _kind(one.shape) not in seen:
                seen.add(_kind(one.shape))
                chosen.append(one)
        return chosen[:count]

    def links(self, shape: PlanConfiguration) -> ActorLinks:
        """Returns the links between the actors of a configuration."""
        key = shape.num_actors, count_devices(shape)
        if key not in self._links:
            self._links[key] = link_actors(
                self.pricing.cluster, num_actors=shape.num_actors, chips_apart=count_devices(shape)
            )
        return self._links[key]

    def find_costs(self, shape: PlanConfiguration, reference: int | None = None) -> StepCosts | None:
        """Returns the costs of a configuration: its own, or scaled from those of another number of microbatches."""
        count = shape.num_microbatches if reference is None else reference
        costs = self.pricing.costs(dict(shape.axes), count, storage=Storage(shape.storage), recompute=shape.recompute)
        if costs is None or count == shape.num_microbatches:
            return costs
        factor = count / shape.num_microbatches
        scaled: dict[int, SegmentCosts] = {}
        for segment in costs.segments:
            if id(segment) not in scaled:
                scaled[id(segment)] = _scale(segment, factor)
        return replace(costs, segments=tuple(scaled[id(segment)] for segment in costs.segments))

    def assign(
        self,
        shape: PlanConfiguration,
        costs: StepCosts,
        *,
        known_s: float = np.inf,
        name: str = "",
        is_exact: bool = True,
    ) -> FoundShape | None:
        """Returns a configuration with its fastest stages that fit; None if there are none, or only slower ones."""
        assigner = self._assigner(costs)
        found = assigner.assign(
            shape.shape,
            memory_limit_bytes=self.memory_limit_bytes,
            links=self.links(shape),
            known_s=known_s,
        )
        if not found:
            return None
        played = play_assignment(costs.segments, shape.shape, found[0], links=self.links(shape))
        self.num_played += 1
        return FoundShape(shape=shape, assignment=found[0], played=played, is_exact=is_exact, name=name)

    def _assigner(self, costs: StepCosts) -> SegmentAssigner:
        key = tuple(map(id, costs.segments))
        if key not in self._assigners:
            self._assigners[key] = SegmentAssigner(costs.segments)
        return self._assigners[key]

    def _price_meshes(self) -> dict[MeshAxes, int]:
        """Prices every mesh once; returns the number of microbatches that it was priced with."""
        counts: dict[MeshAxes, list[int]] = {}
        for shape in self.shapes:
            if shape.num_microbatches not in counts.setdefault(shape.axes, []):
                counts[shape.axes].append(shape.num_microbatches)
        found: dict[MeshAxes, int] = {}
        for done, (axes, possible) in enumerate(counts.items()):
            self._report(done, len(counts), f"pricing a mesh of {dict(axes)}")
            if found and self._is_late(f"{len(counts) - done} of {len(counts)} meshes were not priced"):
                break
            count = sorted(possible)[len(possible) // 2]
            if self.pricing.find(dict(axes), count) is not None:
                found[axes] = count
        if not found:
            raise PlanError(f"the step cannot be sharded over any mesh: {next(iter(self.pricing.failures.values()))}")
        return found

    def _candidates(self, references: Mapping[MeshAxes, int]) -> list[Candidate]:
        """Returns all configurations with a bound on their time, the lowest first."""
        found = []
        for shape in self.shapes:
            if shape.axes in references:
                costs = self.find_costs(shape, references[shape.axes])
                assert costs is not None
                found.append((self._bound_s(costs, shape), shape, references[shape.axes]))
        self.num_seen = len(self.shapes)
        return sorted(found, key=lambda one: one[0])

    def _bound_s(self, costs: StepCosts, shape: PlanConfiguration) -> float:
        return self._assigner(costs).bound_s(shape.shape)

    def _assign_all(self, candidates: list[Candidate], *, is_exact: bool) -> list[FoundShape]:
        best_s, found = np.inf, []
        for done, (bound_s, shape, reference) in enumerate(candidates):
            if bound_s > _SLACK * best_s:
                self.num_pruned += len(candidates) - done
                break
            if found and self._is_late(f"configurations: {len(candidates) - done} of {len(candidates)} were not tried"):
                break
            self._report(done, len(candidates), "assigning segments to stages")
            costs = self.find_costs(shape, reference)
            assert costs is not None
            self.num_priced += 1
            one = self.assign(shape, costs, known_s=_SLACK * best_s, is_exact=is_exact)
            if one is not None:
                found.append(one)
                best_s = min(best_s, one.time_s)
        return sorted(found, key=lambda one: one.time_s)

    def _price_exactly(self, ranked: list[FoundShape]) -> list[FoundShape]:
        """Prices the best meshes with their own numbers of microbatches, and assigns their configurations again."""
        pairs: dict[tuple[MeshAxes, int], None] = {}
        actors: set[int] = set()
        for one in ranked:
            is_new = one.shape.num_actors not in actors
            if len(pairs) < _NUM_EXACT or is_new:
                actors.add(one.shape.num_actors)
                pairs[one.shape.axes, one.shape.num_microbatches] = None
        candidates = []
        for one in ranked:
            shape = one.shape
            if (shape.axes, shape.num_microbatches) in pairs and one.time_s < 2 * ranked[0].time_s:
                self._report(len(candidates), len(ranked), f"pricing {shape.num_microbatches} microbatches")
                costs = self.find_costs(shape)
                if costs is not None:
                    candidates.append((self._bound_s(costs, shape), shape, shape.num_microbatches))
        return self._assign_all(sorted(candidates, key=lambda one: one[0]), is_exact=True)

    def _report(self, done: int, total: int, what: str) -> None:
        if self._on_progress is not None:
            self._on_progress(done, total, what)

    def _is_late(self, what: str) -> bool:
        if self._end_s is None or time.monotonic() < self._end_s:
            return False
        self.left_out.append(what)
        return True

    def _raise_infeasible(self, candidates: list[Candidate]) -> None:
        """Raises the error that says the smallest memory that would do, and what most of it holds."""
        best: tuple[MinimumMemory, PlanConfiguration] | None = None
        for _, shape, reference in candidates[:: max(1, len(candidates) // 60)]:
            costs = self.find_costs(shape, reference)
            assert costs is not None
            least = self._assigner(costs).minimum_memory(shape.shape)
            if least is not None and (best is None or least.size_bytes < best[0].size_bytes):
                best = least, shape
        assert best is not None, "stages are counted before"
        memory, shape = best
        axes = " x ".join(f"{axis} {size}" for axis, size in shape.axes)
        raise InfeasiblePlanError(
            f"no plan fits {self.memory_limit_bytes / 1e9:.3g} GB a device. The smallest found needs "
            f"{memory.size_bytes / 1e9:.3g} GB ({shape.num_stages} stages, {axes}, recompute {shape.recompute.value}, "
            f"{shape.storage}), most of it {memory.largest_term}. Use more devices, or a smaller batch or model."
        )


def _kind(shape: PlanConfiguration) -> object:
    return shape.num_actors, shape.axes, shape.num_microbatches


def _scale(segment: SegmentCosts, factor: float) -> SegmentCosts:
    """Returns the costs of a segment with microbatches of other sizes."""
    return replace(
        segment,
        strategies=tuple(_scale_cost(cost, factor) for cost in segment.strategies),
        reshards_s=None if segment.reshards_s is None else segment.reshards_s * factor,
        input_bytes=round(segment.input_bytes * factor),
    )


def _scale_cost(cost: SegmentCost, factor: float) -> SegmentCost:
    times = {name: getattr(cost, name) * factor for name in _TIMES}
    sizes = {name: round(getattr(cost, name) * factor) for name in _SIZES}
    return replace(cost, **times, **sizes)
