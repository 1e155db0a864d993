"""Searches the configurations in two passes: all of them by scaled prices in closed form, then the best as they are.

In the first pass a mesh is priced with few and with many microbatches, and with others its costs follow from these,
linear in the rows of a microbatch: a kernel has a time to begin, and one for each row. A step is traced and analysed
once for each number of microbatches, so that all meshes share a few of these (`find_references`). The strategies are
ranked once for the meshes that differ in their data axis alone, which shards rows whatever the strategy.

The second pass ranks the strategies of the best meshes with their own numbers of microbatches, and asks the finest
pricer for what is left: a compiler or a measurement prices a dozen meshes, not all of them. Where none of these has a
price, as programs do not fit a chip by the compiler's count, the next best follow.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from jaxquard.errors import InfeasiblePlanError, PlanError
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.prices.step_flops import bound_time_s
from jaxquard.planner.record.plan import PlanSearchLog, Recompute
from jaxquard.planner.search.costs_by_rows import CostsByRows, find_serving
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.list_shapes import count_devices, has_single_axis
from jaxquard.planner.search.live_pricing import BATCH_AXIS
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.configurations.configuration_search import PlanFinalist
from jaxquard.planner.stages.configurations.search import (
    PlanSearchResult,
    RankedConfigurations,
    rank_configurations,
    search_configurations,
)
from jaxquard.planner.stages.segment_costs import SegmentCosts, count_state_bytes
from jaxquard.planner.tables.mesh_prices import MeshAxes, MeshKey, MeshPrices
from jaxquard.progress import Move
from jaxquard.simulate.actor_link import ActorLinks, link_actors

SINGLE_AXIS = "best of a single axis"
# The best of the first pass, whose meshes and numbers of microbatches are priced as they are.
_NUM_RANKED = 8
_NUM_FINALISTS = 6
# The factor between numbers of microbatches that meshes are priced with in the first pass.
_APART = 8
# Of the time that a search has, the share of the first pass; and of that, the share of its prices.
_FIRST_PASS, _PRICING = 0.7, 0.7


@dataclass(kw_only=True, eq=False)
class TwoPassSearch:
    """A search for a step on a cluster.

    Attributes:
        memory_limit_bytes: of a device.
        deadline: of both passes together.
    """

    pricing: StepPricing
    memory_limit_bytes: int
    deadline: Deadline = field(default_factory=Deadline)
    on_progress: Move = field(default=lambda done, total, name: None, repr=False)
    _links: dict[tuple[int, int], ActorLinks] = field(default_factory=dict, repr=False)
    _scaled: dict[object, CostsByRows] = field(default_factory=dict, repr=False)
    _chains: dict[object, Sequence[SegmentCosts]] = field(default_factory=dict, repr=False)
    # The mesh that ranks the strategies of others.
    _ranks: dict[object, MeshKey] = field(default_factory=dict, repr=False)
    _state_bytes: dict[object, int] = field(default_factory=dict, repr=False)

    def run(self, shapes: Sequence[PlanConfiguration]) -> PlanSearchResult:
        """Returns the fastest configurations; its families are the best with each number of actors.

        Raises:
            PlanError: if the step cannot be sharded over any of the meshes.
            InfeasiblePlanError: if nothing fits the memory; the smallest that would, and what most of it holds.
        """
        first_pass = self.deadline.part(_FIRST_PASS)
        references = self._price_meshes(shapes, first_pass.part(_PRICING))
        known = [shape for shape in shapes if shape.axes in references]
        while True:
            ranked = rank_configurations(
                known,
                lambda shape: self._scaled_costs(shape, references[shape.axes]),
                smallest_bytes=lambda shape: self._smallest_bytes(shape, references[shape.axes]),
                num_finalists=_NUM_RANKED,
                **self._options(known, first_pass),
            )
            first_pass.left_out.extend(ranked.log.left_out)
            if not ranked.configurations:
                raise self._infeasible(ranked.smallest)
            pairs = self._price_ranked(ranked)
            priced = [shape for shape in known if (shape.axes, shape.num_microbatches) in pairs]
            exact = search_configurations(
                priced, self.find_costs, num_finalists=_NUM_FINALISTS, **self._options(priced, self.deadline)
            )
            self.deadline.left_out.extend(exact.log.left_out)
            if exact.best is not None:
                break
            if self.pricing.is_fine and not self.deadline.has_time():
                self.deadline.left_out.append(
                    "the time budget left out the prices of all plans but the usual ones; the others have prices in "
                    "closed form, and are not taken"
                )
                self.pricing.give_up_refining()
                continue
            left = [shape for shape in known if (shape.axes, shape.num_microbatches) not in pairs]
            if not left or not self.deadline.has_time():
                raise self._infeasible(exact.smallest)
            known = left
        # Parts that the second pass has one value of.
        others = ranked.find_alternatives(
            exact.best.configuration, {one.part for one in exact.alternatives}, self.deadline.budget_s
        )
        self.deadline.left_out.extend(others.missing)
        unknown = frozenset(shapes) - frozenset(known)
        log = _add_logs(ranked, exact, unknown, num_seen=len(shapes))
        log = replace(log, num_simulated=log.num_simulated + others.num_simulated)
        return replace(exact, alternatives=(*exact.alternatives, *others.found), log=log)

    def find_costs(self, shape: PlanConfiguration) -> Sequence[SegmentCosts]:
        """Returns the costs of a configuration; none if the step cannot be sharded so."""
        costs = self.pricing.costs(
            shape.mesh, shape.num_microbatches, storage=Storage(shape.storage), recompute=shape.recompute
        )
        return () if costs is None else costs.segments

    def links(self, shape: PlanConfiguration) -> ActorLinks:
        """Returns the links between the actors of a configuration."""
        key = shape.num_actors, count_devices(shape)
        if key not in self._links:
            cluster = self.pricing.cluster
            self._links[key] = link_actors(cluster, num_actors=shape.num_actors, chips_apart=count_devices(shape))
        return self._links[key]

    def _options(self, shapes: Sequence[PlanConfiguration], deadline: Deadline) -> dict[str, Any]:
        """Returns what both passes ask for."""
        actors = sorted({shape.num_actors for shape in shapes})
        families: dict[str, Callable[[PlanConfiguration], bool]] = {
            f"{number} actors": lambda shape, number=number: shape.num_actors == number for number in actors
        }
        families[SINGLE_AXIS] = has_single_axis
        return {
            "bound": self._bound_s,
            "memory_limit_bytes": self.memory_limit_bytes,
            "links": self.links,
            "time_budget_s": deadline.budget_s,
            "families": families,
            "as_used": lambda shape: replace(shape, storage=Storage.AS_USED.value),
            "on_progress": self.on_progress,
        }

    def _bound_s(self, shape: PlanConfiguration) -> float:
        num_devices = shape.num_actors * count_devices(shape)
        return bound_time_s(self.pricing.flops, self.pricing.cluster, num_devices)

    def _smallest_bytes(self, shape: PlanConfiguration, references: Mapping[int, MeshPrices]) -> float:
        """Returns an equal share of the smallest state: what is there all the time, with any number of microbatches."""
        key = shape.axes, shape.storage
        if key not in self._state_bytes:
            storage = Storage(shape.storage)
            sizes = [
                count_state_bytes(one.costs(storage=storage, recompute=Recompute.NONE).segments)
                for one in references.values()
            ]
            self._state_bytes[key] = min(sizes)
        return self._state_bytes[key] / shape.num_actors

    def _price_meshes(
        self, shapes: Sequence[PlanConfiguration], deadline: Deadline
    ) -> dict[MeshAxes, dict[int, MeshPrices]]:
        """Prices every mesh in closed form, with few and many microbatches, by their number."""
        counts = find_references(shapes, self.pricing.problem.rows)
        found: dict[MeshAxes, dict[int, MeshPrices]] = {}
        for done, (axes, ends) in enumerate(counts.items()):
            if found and not deadline.has_time():
                deadline.left_out.append(f"the time budget left out {len(counts) - done} of {len(counts)} meshes")
                break
            self.on_progress(done, len(counts), f"pricing a mesh of {dict(axes)}")
            ranked_by = self._ranks.setdefault(_ranked_alike(axes), (axes, ends[0]))
            prices = {count: self.pricing.find_coarse(dict(axes), count, ranked_by=ranked_by) for count in ends}
            known = {count: one for count, one in prices.items() if one is not None}
            if known:
                found[axes] = known
        if not found:
            raise PlanError(f"the step cannot be sharded over any mesh: {next(iter(self.pricing.failures.values()))}")
        return found

    def _price_ranked(self, ranked: RankedConfigurations) -> set[tuple[MeshAxes, int]]:
        """Prices the best meshes of the first pass with their own numbers of microbatches, the very best first."""
        others = [*ranked.configurations, *(one for one in ranked.families.values() if one is not None)]
        pairs = dict.fromkeys((one.axes, one.num_microbatches) for one in others)
        found: set[tuple[MeshAxes, int]] = set()
        for axes, count in pairs:
            if found and not self.deadline.has_time():
                self.deadline.left_out.append(
                    f"the time budget left out the own prices of {len(pairs) - len(found)} of the {len(pairs)} best "
                    "meshes and microbatches"
                )
                break
            self.pricing.find(dict(axes), count, deadline=self.deadline)
            found.add((axes, count))
        return found

    def _scaled_costs(self, shape: PlanConfiguration, references: Mapping[int, MeshPrices]) -> Sequence[SegmentCosts]:
        """Returns the costs of a configuration, from those of other numbers of microbatches."""
        key = shape.priced_as
        if key not in self._chains:
            count, blocks = shape.num_microbatches, [one.facts.blocks for one in references.values()]
            serving = find_serving(count, [*references], blocks)
            has_rows = partial(references[serving[0]].has_rows, serving[0] / count)
            self._chains[key] = self._find_scaled(shape, serving, references).with_microbatches(count, fits=has_rows)
        return self._chains[key]

    def _find_scaled(
        self, shape: PlanConfiguration, serving: Sequence[int], references: Mapping[int, MeshPrices]
    ) -> CostsByRows:
        """Returns the costs with some references, from which those with other numbers of microbatches follow."""
        key = shape.axes, tuple(serving), shape.storage, shape.recompute
        if key not in self._scaled:
            # A microbatch costs the same however the state is stored; what is once a step is taken from the first.
            costs = [
                references[count].costs(
                    storage=Storage.AS_USED if place else Storage(shape.storage), recompute=shape.recompute
                )
                for place, count in enumerate(serving)
            ]
            self._scaled[key] = CostsByRows(serving, costs)
        return self._scaled[key]

    def _infeasible(self, smallest: PlanFinalist | None) -> PlanError:
        if smallest is None:
            reason = next(iter(self.pricing.failures.values()), "")
            why = f": {reason}" if reason else ". Relax the wishes, or use another pricer."
            return PlanError(f"no configuration of the step has a price{why}")
        return InfeasiblePlanError(
            f"no plan fits {self.memory_limit_bytes / 1e9:.3g} GB a device. The smallest found needs "
            f"{smallest.memory_bytes / 1e9:.3g} GB ({smallest.configuration}), most of it "
            f"{smallest.played.memory.largest_term}. Use more devices, or a smaller batch or model."
        )


def _ranked_alike(axes: MeshAxes) -> object:
    """Returns a key of the meshes whose strategies are ranked together: those that differ in their data axis alone."""
    return tuple((name, None if name == BATCH_AXIS else size) for name, size in axes)


def _add_logs(
    first: RankedConfigurations, second: PlanSearchResult, unknown: frozenset[PlanConfiguration], *, num_seen: int
) -> PlanSearchLog:
    """Returns the counts of both passes: what either has a price of is priced, once.

    Args:
        unknown: configurations on meshes without prices.
    """
    priced = first.priced | second.priced
    unpriced = (first.unpriced | unknown) - priced
    return PlanSearchLog(
        num_seen=num_seen,
        num_pruned=num_seen - len(priced) - len(unpriced),
        num_priced=len(priced),
        num_unpriced=len(unpriced),
        num_simulated=first.log.num_simulated + second.log.num_simulated,
    )


def find_references(shapes: Sequence[PlanConfiguration], num_rows: int) -> dict[MeshAxes, tuple[int, ...]]:
    """Returns the numbers of microbatches with which each mesh is priced in the first pass: few, and many.

    Few are at most as many as a mesh has; with many, all devices of the mesh still divide the rows, so that segments
    and strategies are the same with both. Costs that are scaled from few alone would leave out what a microbatch costs
    however small it is; so a small batch has a number of its own.
    """
    counts: dict[MeshAxes, set[int]] = {}
    for shape in shapes:
        counts.setdefault(shape.axes, set()).add(shape.num_microbatches)
    shared: list[int] = []
    for count in sorted(set[int]().union(*counts.values())):
        if not shared or count >= _APART * shared[-1]:
            shared.append(count)
    found = {}
    for axes, own in counts.items():
        num_devices = math.prod(size for _, size in axes)
        fitting = [count for count in shared if num_rows % (count * num_devices) == 0]
        few = max((count for count in fitting if count <= min(own)), default=min(own))
        many = max((count for count in fitting if few < count <= max(own)), default=_most(own, num_rows, num_devices))
        found[axes] = (few,) if len(own) == 1 and few in own else tuple(sorted({few, many}))
    return found


def _most(counts: Collection[int], num_rows: int, num_devices: int) -> int:
    """Returns the largest number of microbatches whose rows all devices divide; the largest of all if there is none."""
    return max((count for count in counts if num_rows % (count * num_devices) == 0), default=max(counts))
