"""Searches the space of configurations: stages for each by exact assignment, the most promising first.

A mesh is priced with one number of microbatches, and with others its costs are scaled by the rows of a microbatch,
which is near the truth where kernels are large. So the best meshes and numbers are then priced as they are.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from jaxquard.errors import InfeasiblePlanError, PlanError
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.search.configurations import PlanShape, PlanSpace
from jaxquard.planner.search.play_stages import PlayedStages, play_stages
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.stages.assign import MinimumMemory, SegmentAssigner
from jaxquard.planner.stages.segment_costs import SegmentCost, SegmentCosts
from jaxquard.simulate.actor_link import ActorLinks, link_actors

# Configurations whose bound is this much slower than the best so far are not assigned.
_SLACK = 1.25
# Meshes with a number of microbatches that are priced as they are, after all were ranked.
_NUM_EXACT = 8
_TIMES = ("forward_s", "input_gradient_s", "weight_gradient_s", "recompute_s", "communication_s")
_SIZES = ("activation_bytes", "working_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundShape:
    """A configuration with its stages.

    Attributes:
        is_exact: whether it was priced with its own number of microbatches.
        name: of a baseline; "" for a plan of the search.
    """

    shape: PlanShape
    played: PlayedStages
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
        space: PlanSpace,
        pricing: StepPricing,
        *,
        memory_limit_bytes: int,
        time_budget_s: float | None = None,
        on_progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        self.space, self.pricing, self.memory_limit_bytes = space, pricing, memory_limit_bytes
        self._end_s = None if time_budget_s is None else time.monotonic() + time_budget_s / 2
        self._on_progress = on_progress
        self._assigners: dict[object, SegmentAssigner] = {}
        self._links: dict[tuple[int, int], ActorLinks] = {}
        self._smallest: tuple[MinimumMemory, PlanShape] | None = None
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
        exact = self._price_exactly(ranked, references)
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

    def links(self, shape: PlanShape) -> ActorLinks:
        """Returns the links between the actors of a configuration."""
        key = shape.num_actors, shape.actor_devices
        if key not in self._links:
            self._links[key] = link_actors(
                self.pricing.cluster, num_actors=shape.num_actors, chips_apart=shape.actor_devices
            )
        return self._links[key]

    def find_costs(self, shape: PlanShape, reference: int | None = None) -> StepCosts | None:
        """Returns the costs of a configuration: its own, or scaled from those of another number of microbatches."""
        count = shape.num_microbatches if reference is None else reference
        costs = self.pricing.costs(dict(shape.axes), count, storage=shape.storage, recompute=shape.recompute)
        if costs is None or count == shape.num_microbatches:
            return costs
        factor = count / shape.num_microbatches
        scaled: dict[int, SegmentCosts] = {}
        for segment in costs.segments:
            if id(segment) not in scaled:
                scaled[id(segment)] = _scale(segment, factor)
        return replace(costs, segments=tuple(scaled[id(segment)] for segment in costs.segments))

    def assign(
        self, shape: PlanShape, costs: StepCosts, *, known_s: float = np.inf, name: str = "", is_exact: bool = True
    ) -> FoundShape | None:
        """Returns a configuration with its fastest stages that fit; None if there are none, or only slower ones."""
        assigner = self._assigner(costs)
        found = assigner.assign(
            shape.pipeline,
            memory_limit_bytes=self.memory_limit_bytes,
            links=self.links(shape),
            known_s=known_s,
        )
        if not found:
            return None
        played = play_stages(costs.segments, shape.pipeline, found[0], links=self.links(shape))
        self.num_played += 1
        return FoundShape(shape=shape, played=played, is_exact=is_exact, name=name)

    def _assigner(self, costs: StepCosts) -> SegmentAssigner:
        key = tuple(map(id, costs.segments))
        if key not in self._assigners:
            self._assigners[key] = SegmentAssigner(costs.segments)
        return self._assigners[key]

    def _price_meshes(self) -> dict[tuple[int, tuple[tuple[str, int], ...]], int]:
        """Prices every mesh once; returns the number of microbatches that it was priced with."""
        found: dict[tuple[int, tuple[tuple[str, int], ...]], int] = {}
        meshes = [(actors, axes, self.space.counts(actors, axes)) for actors, axes in self.space.meshes()]
        meshes = [(actors, axes, counts) for actors, axes, counts in meshes if counts]
        if not meshes:
            raise PlanError(self._explain_empty())
        known: dict[tuple[tuple[str, int], ...], int] = {}
        for done, (actors, axes, counts) in enumerate(meshes):
            self._report(done, len(meshes), f"pricing a mesh of {axes}")
            key = tuple(axes.items())
            count = known.get(key) if known.get(key) in counts else counts[len(counts) // 2]
            assert count is not None
            if found and self._is_late(f"actors x meshes: {len(meshes) - done} of {len(meshes)} were not priced"):
                break
            if self.pricing.find(axes, count) is not None:
                known[key] = count
                found[actors, key] = count
        if not found:
            reason = next(iter(self.pricing.failures.values()), "the wishes leave nothing")
            raise PlanError(
                f"the step cannot be sharded over any mesh of {self.space.target.num_devices} devices: {reason}"
            )
        return found

    def _candidates(
        self, references: Mapping[tuple[int, tuple[tuple[str, int], ...]], int]
    ) -> list[tuple[float, PlanShape, int]]:
        """Returns all configurations with a bound on their time, the lowest first."""
        found = []
        for (actors, key), reference in references.items():
            axes = dict(key)
            for count in self.space.counts(actors, axes):
                for shape in self.space.shapes(actors, axes, count):
                    costs = self.find_costs(shape, reference)
                    assert costs is not None
                    found.append((self._bound_s(costs, shape), shape, reference))
        self.num_seen = len(found)
        if not found:
            raise PlanError(self._explain_empty())
        return sorted(found, key=lambda one: one[0])

    def _bound_s(self, costs: StepCosts, shape: PlanShape) -> float:
        return self._assigner(costs).bound_s(shape.pipeline)

    def _assign_all(self, candidates: list[tuple[float, PlanShape, int]], *, is_exact: bool) -> list[FoundShape]:
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

    def _price_exactly(
        self, ranked: list[FoundShape], references: Mapping[tuple[int, tuple[tuple[str, int], ...]], int]
    ) -> list[FoundShape]:
        """Prices the best meshes with their own numbers of microbatches, and assigns their configurations again."""
        pairs: dict[tuple[tuple[tuple[str, int], ...], int], None] = {}
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

    def _explain_empty(self) -> str:
        target, rows = self.space.target, self.space.problem.rows
        return (
            f"no plan is left for {target.num_devices} devices and a batch of {rows} rows: its rows divide into "
            f"{', '.join(map(str, self.space.problem.counts[:12]))} microbatches, and a stage can begin at "
            f"{self.space.max_stages - 1} places. Give a batch whose rows the devices divide, or relax the wishes."
        )

    def _raise_infeasible(self, candidates: list[tuple[float, PlanShape, int]]) -> None:
        """Raises the error that says the smallest memory that would do, and what most of it holds."""
        best: tuple[MinimumMemory, PlanShape] | None = None
        for _, shape, reference in candidates[:: max(1, len(candidates) // 60)]:
            costs = self.find_costs(shape, reference)
            assert costs is not None
            least = self._assigner(costs).minimum_memory(shape.pipeline)
            if least is not None and (best is None or least.size_bytes < best[0].size_bytes):
                best = least, shape
        if best is None:
            raise PlanError(self._explain_empty())
        memory, shape = best
        axes = " x ".join(f"{axis} {size}" for axis, size in shape.axes)
        raise InfeasiblePlanError(
            f"no plan fits {self.memory_limit_bytes / 1e9:.3g} GB a device. The smallest found needs "
            f"{memory.size_bytes / 1e9:.3g} GB ({shape.num_stages} stages, {axes}, recompute {shape.recompute.value}, "
            f"{shape.storage.value}), most of it {memory.largest_term}. Use more devices, or a smaller batch or model."
        )


def _kind(shape: PlanShape) -> object:
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
