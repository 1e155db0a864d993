"""The cost of one strategy of a segment, from the roofline of its program: `SegmentCost` without neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxquard.intraop.segments.boundary_values import SegmentInterface
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import Var
from jaxquard.planner.prices.kept_values import ForwardValues, KeptValues
from jaxquard.planner.prices.part_times import PartTimes, scale_to_price, split_times
from jaxquard.planner.prices.state_bytes import StateBytes, StateOwners, state_bytes
from jaxquard.planner.prices.step_parts import StepPart, find_late_sums, find_parts, find_update
from jaxquard.planner.prices.working_bytes import working_bytes
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.stages.segment_costs import SegmentCost
from jaxquard.pricing import Price, ShardedProgram
from jaxquard.pricing.roofline.program_cost import ProgramCost
from jaxquard.pricing.roofline.roofline_pricer import RooflinePricer
from jaxquard.pricing.roofline.value_dims import dims_of_spec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecomputeCost:
    """The part of a strategy's cost that recomputation changes."""

    recompute_s: float
    activation_bytes: int
    working_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StrategyCost:
    """The cost of a strategy under each kind of recomputation.

    Attributes:
        cost: of the program, as the roofline has it.
        times: the same, by part of the step.
    """

    cost: ProgramCost = field(repr=False)
    times: PartTimes
    state: StateBytes
    recompute: dict[Recompute, RecomputeCost]

    @property
    def time_s(self) -> float:
        """The seconds of the whole program: one microbatch and the update."""
        return self.cost.compute_s + self.cost.communication_s

    @property
    def size_bytes(self) -> int:
        """The bytes with one microbatch in flight."""
        kept = self.recompute[Recompute.NONE]
        state = self.state.weight_bytes + self.state.gradient_bytes + self.state.optimizer_bytes
        return state + kept.activation_bytes + kept.working_bytes

    def segment_cost(
        self, recompute: Recompute, *, price: Price | None, stored: "StrategyCost", entry: int, exit_layout: int
    ) -> SegmentCost:
        """Returns the cost, scaled to the price of another pricer where there is one.

        Args:
            stored: of the same strategy under the storage that is asked for.
        """
        times = self.times if price is None else scale_to_price(self.times, self.cost, price)
        once = stored.times if price is None else scale_to_price(stored.times, self.cost, price)
        chosen = self.recompute[recompute]
        factor = times.time_s(StepPart.FORWARD) / max(self.times.time_s(StepPart.FORWARD), 1e-30)
        return SegmentCost(
            forward_s=times.time_s(StepPart.FORWARD),
            input_gradient_s=times.time_s(StepPart.INPUT_GRADIENT),
            weight_gradient_s=times.time_s(StepPart.WEIGHT_GRADIENT),
            recompute_s=chosen.recompute_s * factor,
            step_s=once.step_s,
            gradient_sum_s=once.gradient_sum_s,
            communication_s=times.exposed_s,
            weight_bytes=stored.state.weight_bytes,
            gradient_bytes=stored.state.gradient_bytes,
            optimizer_bytes=stored.state.optimizer_bytes,
            activation_bytes=chosen.activation_bytes,
            working_bytes=chosen.working_bytes,
            entry=entry,
            exit=exit_layout,
        )


class StrategyCosts:
    """Costs of a step's strategies on a mesh."""

    def __init__(self, programs: StepPrograms, coarse: RooflinePricer) -> None:
        self._programs = programs
        self._coarse = coarse
        self._update = find_update(programs.analysis.graph)
        self._owners = StateOwners(programs.analysis, update=self._update)
        # By the ids of jaxprs, which are kept beside so that no other one gets them.
        self._parts: dict[int, tuple[object, tuple[StepPart, ...], frozenset[int]]] = {}
        self._kept: dict[int, tuple[object, dict[Recompute, KeptValues]]] = {}

    def cost(
        self, segment: Segment, strategy: Strategy, program: ShardedProgram, *, storage: Storage = Storage.AS_USED
    ) -> StrategyCost:
        """Returns the cost of a strategy whose program is written."""
        interface = self._programs.layouts.interface(segment)
        parts, late_sums = self._find_parts(program, interface)
        cost = self._coarse.cost(program, parts=parts)
        state = list(self._owners.of_segment(segment, set(interface.inputs)))
        layouts = self._programs.layouts.lay_out(
            dict(zip(segment.blocks, strategy, strict=True)), segment=segment, storage=storage
        )
        names = tuple(self._coarse.mesh.axis_names)
        specs = [layouts.spec(var) for var, _ in state]
        used = [(None,) * len(names) if spec is None else dims_of_spec(spec, names) for spec in specs]
        return StrategyCost(
            cost=cost,
            times=split_times(cost, parts, late_sums),
            state=state_bytes(cost, parts, state=state, used=used, sizes=tuple(self._coarse.mesh.shape.values())),
            recompute=self._recompute(cost, parts, interface),
        )

    def write_and_cost(self, segment: Segment, strategy: Strategy, *, storage: Storage) -> StrategyCost:
        """Returns the cost of a strategy under a storage of state."""
        assignment = dict(zip(segment.blocks, strategy, strict=True))
        program = self._programs.write_segments([segment], assignment, storage=storage)
        return self.cost(segment, strategy, program, storage=storage)

    def _recompute(
        self, cost: ProgramCost, parts: Sequence[StepPart], interface: SegmentInterface
    ) -> dict[Recompute, RecomputeCost]:
        values = self._keep(cost, parts, interface)
        all_kept = values[Recompute.NONE].kept
        all_bytes = sum(cost.sizes_bytes[number] for number in all_kept)
        temporary = working_bytes(cost, parts, kept=all_kept)
        found = {}
        for recompute in Recompute:
            chosen = values[recompute]
            kept_bytes = sum(cost.sizes_bytes[number] for number in chosen.kept)
            found[recompute] = RecomputeCost(
                recompute_s=_time_again_s(cost, chosen.recomputed),
                activation_bytes=kept_bytes,
                working_bytes=temporary + max(0, all_bytes - kept_bytes),
            )
        return found

    def _keep(
        self, cost: ProgramCost, parts: Sequence[StepPart], interface: SegmentInterface
    ) -> dict[Recompute, KeptValues]:
        """Returns what each kind of recomputation keeps; strategies with the same jaxpr share it."""
        key = id(cost.prepared)
        if key not in self._kept:
            entering, data = self._inputs(cost, interface)
            values = ForwardValues(cost.prepared, parts, data=data, entering=entering)
            found = {recompute: values.keep(recompute) for recompute in Recompute}
            self._kept[key] = cost.prepared, found
        return self._kept[key][1]

    def _inputs(self, cost: ProgramCost, interface: SegmentInterface) -> tuple[set[int], set[int]]:
        """Returns the inputs of a program that come from segments before, and all that depend on data."""
        graph = self._programs.analysis.graph
        numbers = cost.prepared.numbers

        def is_forward(var: Var) -> bool:
            position = graph.definitions.get(var)
            return position is not None and graph.phases[position] is EquationPhase.FORWARD

        data = {numbers[var] for var in interface.inputs if var in graph.data_vars}
        # An arriving value that only a barrier of another segment reads is no input.
        arriving = [found.var for found in interface.arriving if found.var in numbers and is_forward(found.var)]
        return {numbers[var] for var in arriving} & set(cost.prepared.inputs), data

    def _find_parts(
        self, program: ShardedProgram, interface: SegmentInterface
    ) -> tuple[tuple[StepPart, ...], frozenset[int]]:
        """Returns the parts of a program's equations; strategies with the same jaxpr share them."""
        closed: Any = program.jaxpr
        if id(closed) not in self._parts:
            jaxpr = closed.jaxpr
            parts = find_parts(jaxpr, self._programs.analysis, interface, update=self._update)
            self._parts[id(closed)] = closed, parts, find_late_sums(jaxpr, parts)
        _, parts, late_sums = self._parts[id(closed)]
        return parts, late_sums


def _time_again_s(cost: ProgramCost, recomputed: frozenset[int]) -> float:
    """Returns the seconds of kernels and collectives that recomputation runs again."""
    kernels = sum(kernel.time_s for kernel in cost.kernels if not recomputed.isdisjoint(kernel.positions))
    return kernels + sum(found.time_s for found in cost.collectives if found.position in recomputed)
