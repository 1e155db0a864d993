"""Searches the configurations in two passes: all of them by scaled prices, then the best as they are.

In the first pass a mesh is priced with one number of microbatches, and with others its costs are scaled by the rows of
a microbatch, which is near the truth where kernels are large. The second prices the best meshes with their own numbers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxquard.errors import InfeasiblePlanError, PlanError
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.record.plan import PlanSearchLog
from jaxquard.planner.search.list_shapes import count_devices, has_single_axis
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.stages.configuration import PlanConfiguration
from jaxquard.planner.stages.search import PlanSearchResult, search_configurations
from jaxquard.planner.stages.segment_costs import SegmentCost, SegmentCosts
from jaxquard.simulate.actor_link import ActorLinks, link_actors

SINGLE_AXIS = "best of a single axis"
# The best of the first pass, whose meshes and numbers of microbatches are priced as they are.
_NUM_RANKED = 8
_NUM_FINALISTS = 6
_TIMES = ("forward_s", "input_gradient_s", "weight_gradient_s", "recompute_s", "communication_s")
_SIZES = ("activation_bytes", "working_bytes")

OnPlanProgress = Callable[[int, int, str], None]
# The axes of a mesh and their sizes.
MeshAxes = tuple[tuple[str, int], ...]


@dataclass(kw_only=True, eq=False)
class TwoPassSearch:
    """A search for a step on a cluster.

    Attributes:
        memory_limit_bytes: of a device.
        time_budget_s: for both passes together; None for no limit.
    """

    pricing: StepPricing
    memory_limit_bytes: int
    time_budget_s: float | None = None
    on_progress: OnPlanProgress = field(default=lambda done, total, name: None, repr=False)
    _links: dict[tuple[int, int], ActorLinks] = field(default_factory=dict, repr=False)
    _scaled: dict[object, Sequence[SegmentCosts]] = field(default_factory=dict, repr=False)

    def run(self, shapes: Sequence[PlanConfiguration]) -> PlanSearchResult:
        """Returns the fastest configurations; its families are the best with each number of actors.

        Raises:
            PlanError: if the step cannot be sharded over any of the meshes.
            InfeasiblePlanError: if nothing fits the memory; the smallest that would, and what most of it holds.
        """
        end_s = None if self.time_budget_s is None else time.monotonic() + self.time_budget_s
        references, left_out = self._price_meshes(shapes, end_s)
        known = [shape for shape in shapes if shape.axes in references]
        ranked = self._search(
            known, lambda shape: self._scaled_costs(shape, references[shape.axes]), _NUM_RANKED, _rest_s(end_s)
        )
        if ranked.best is None:
            raise self._infeasible(ranked)
        best = [*ranked.finalists, *(one for one in ranked.families.values() if one is not None)]
        pairs = {(one.configuration.axes, one.configuration.num_microbatches) for one in best}
        exact = self._search(
            [shape for shape in known if (shape.axes, shape.num_microbatches) in pairs],
            self.find_costs,
            _NUM_FINALISTS,
            _rest_s(end_s),
        )
        if exact.best is None:
            raise self._infeasible(exact)
        alternatives = exact.alternatives
        if ranked.best.configuration == exact.best.configuration:
            # Parts that the second pass has one value of.
            known_parts = {one.part for one in alternatives}
            alternatives += tuple(one for one in ranked.alternatives if one.part not in known_parts)
        log = _add_logs(ranked.log, exact.log, num_seen=len(shapes), left_out=left_out)
        return replace(exact, alternatives=alternatives, log=log)

    def find_costs(self, shape: PlanConfiguration) -> Sequence[SegmentCosts]:
        """Returns the costs of a configuration; none if the step cannot be sharded so."""
        storage = Storage(shape.storage)
        costs = self.pricing.costs(shape.mesh, shape.num_microbatches, storage=storage, recompute=shape.recompute)
        return () if costs is None else costs.segments

    def links(self, shape: PlanConfiguration) -> ActorLinks:
        """Returns the links between the actors of a configuration."""
        key = shape.num_actors, count_devices(shape)
        if key not in self._links:
            cluster = self.pricing.cluster
            self._links[key] = link_actors(cluster, num_actors=shape.num_actors, chips_apart=count_devices(shape))
        return self._links[key]

    def _search(
        self,
        shapes: Sequence[PlanConfiguration],
        costs: Callable[[PlanConfiguration], Sequence[SegmentCosts]],
        num_finalists: int,
        time_budget_s: float | None,
    ) -> PlanSearchResult:
        actors = sorted({shape.num_actors for shape in shapes})
        families: dict[str, Callable[[PlanConfiguration], bool]] = {
            f"{number} actors": lambda shape, number=number: shape.num_actors == number for number in actors
        }
        families[SINGLE_AXIS] = has_single_axis
        return search_configurations(
            shapes,
            costs,
            memory_limit_bytes=self.memory_limit_bytes,
            links=self.links,
            time_budget_s=time_budget_s,
            num_finalists=num_finalists,
            families=families,
            on_progress=self.on_progress,
        )

    def _price_meshes(
        self, shapes: Sequence[PlanConfiguration], end_s: float | None
    ) -> tuple[dict[MeshAxes, int], list[str]]:
        """Prices every mesh once; returns the number of microbatches that it was priced with, and what was left out."""
        counts: dict[MeshAxes, dict[int, None]] = {}
        for shape in shapes:
            counts.setdefault(shape.axes, {})[shape.num_microbatches] = None
        found: dict[MeshAxes, int] = {}
        left_out = []
        for done, (axes, possible) in enumerate(counts.items()):
            if found and end_s is not None and time.monotonic() > end_s:
                left_out.append(f"the time budget left out {len(counts) - done} of {len(counts)} meshes")
                break
            self.on_progress(done, len(counts), f"pricing a mesh of {dict(axes)}")
            count = sorted(possible)[len(possible) // 2]
            if self.pricing.find(dict(axes), count) is not None:
                found[axes] = count
        if not found:
            raise PlanError(f"the step cannot be sharded over any mesh: {next(iter(self.pricing.failures.values()))}")
        return found, left_out

    def _scaled_costs(self, shape: PlanConfiguration, reference: int) -> Sequence[SegmentCosts]:
        """Returns the costs of a configuration, scaled from those of another number of microbatches."""
        key = shape.priced_as
        if key not in self._scaled:
            near = replace(shape, num_microbatches=reference)
            factor = reference / shape.num_microbatches
            segments = self.find_costs(near)
            scaled = {id(segment): segment if factor == 1 else _scale(segment, factor) for segment in segments}
            self._scaled[key] = tuple(scaled[id(segment)] for segment in segments)
        return self._scaled[key]

    def _infeasible(self, result: PlanSearchResult) -> PlanError:
        if result.smallest is None:
            return PlanError("no configuration of the step has a price. Relax the wishes, or use another pricer.")
        shape, memory = result.smallest
        return InfeasiblePlanError(
            f"no plan fits {self.memory_limit_bytes / 1e9:.3g} GB a device. The smallest found needs "
            f"{memory.size_bytes / 1e9:.3g} GB ({shape}), most of it {memory.largest_term}. Use more devices, or a "
            "smaller batch or model."
        )


def _rest_s(end_s: float | None) -> float | None:
    return None if end_s is None else max(0.0, end_s - time.monotonic())


def _add_logs(first: PlanSearchLog, second: PlanSearchLog, *, num_seen: int, left_out: Sequence[str]) -> PlanSearchLog:
    return PlanSearchLog(
        num_seen=num_seen,
        num_pruned=first.num_pruned,
        num_priced=first.num_priced + second.num_priced,
        num_simulated=first.num_simulated + second.num_simulated,
        left_out=(*left_out, *first.left_out, *second.left_out),
    )


def _scale(segment: SegmentCosts, factor: float) -> SegmentCosts:
    """Returns the costs of a segment with microbatches of other sizes."""
    return replace(
        segment,
        strategies=tuple(_scale_cost(cost, factor) for cost in segment.strategies),
        reshards_s=None if segment.reshards_s is None else segment.reshards_s * factor,
        input_bytes=round(segment.input_bytes * factor),
    )


def _scale_cost(cost: SegmentCost, factor: float) -> SegmentCost:
    scaled: dict[str, Any] = {name: getattr(cost, name) * factor for name in _TIMES}
    scaled |= {name: round(getattr(cost, name) * factor) for name in _SIZES}
    return replace(cost, **scaled)
