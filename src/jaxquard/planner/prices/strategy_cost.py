"""The cost of one strategy of a segment, from the roofline of its program: `SegmentCost` without neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.interfaces import SegmentInterface
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.planner.prices.part_times import PartTimes, scale_to_price, split_times
from jaxquard.planner.prices.program_parts import ProgramParts
from jaxquard.planner.prices.state_bytes import StateBytes, state_bytes
from jaxquard.planner.prices.step_parts import StepPart
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
        recompute: by kind; empty for another storage of state than as it is used.
    """

    cost: ProgramCost = field(repr=False)
    times: PartTimes
    state: StateBytes
    recompute: Mapping[Recompute, RecomputeCost]

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
        self,
        recompute: Recompute,
        *,
        price: Price | None,
        stored: "StrategyCost",
        entry: int,
        exit_layout: int,
        scatters_sums: bool = False,
    ) -> SegmentCost:
        """Returns the cost, scaled to the price of another pricer where there is one.

        Args:
            stored: of the same strategy under the storage that is asked for.
            scatters_sums: sums of gradients are reduced with every microbatch, and kept sharded: ZeRO 2.
        """
        times = self.times if price is None else scale_to_price(self.times, self.cost, price)
        once = stored.times if price is None else scale_to_price(stored.times, self.cost, price)
        chosen = self.recompute[recompute]
        # What moves from the end of the step to each of its microbatches.
        moved_s = once.late_sum_s if scatters_sums else 0.0
        factor = times.time_s(StepPart.FORWARD) / max(self.times.time_s(StepPart.FORWARD), 1e-30)
        return SegmentCost(
            forward_s=times.time_s(StepPart.FORWARD),
            input_gradient_s=times.time_s(StepPart.INPUT_GRADIENT),
            weight_gradient_s=times.time_s(StepPart.WEIGHT_GRADIENT) + moved_s,
            recompute_s=chosen.recompute_s * factor,
            step_s=once.step_s - moved_s,
            gradient_sum_s=once.gradient_sum_s - moved_s,
            communication_s=times.exposed_s + moved_s,
            weight_bytes=stored.state.weight_bytes,
            gradient_bytes=stored.state.scattered_bytes if scatters_sums else stored.state.gradient_bytes,
            optimizer_bytes=stored.state.optimizer_bytes,
            activation_bytes=chosen.activation_bytes,
            working_bytes=chosen.working_bytes,
            entry=entry,
            exit=exit_layout,
        )


class StrategyCosts:
    """Costs of a step's strategies on a mesh.

    Args:
        like: those on another mesh; where both have the same segments, they share what they read from programs.
    """

    def __init__(self, programs: StepPrograms, coarse: RooflinePricer, *, like: "StrategyCosts | None" = None) -> None:
        self.programs = programs
        self._coarse = coarse
        interfaces = programs.analysis.interfaces
        is_same = like is not None and like.programs.analysis.interfaces is interfaces
        self._parts = like._parts if like is not None and is_same else ProgramParts(programs.analysis)

    def cost(
        self, segment: Segment, strategy: Strategy, program: ShardedProgram, *, storage: Storage = Storage.AS_USED
    ) -> StrategyCost:
        """Returns the cost of a strategy whose program is written."""
        interface = self.programs.layouts.interface(segment)
        parts, late_sums = self._parts.find(program, interface)
        cost = self._coarse.cost(program, parts=parts)
        state = self._parts.state(segment)
        layouts = self.programs.layouts.lay_out(
            dict(zip(segment.blocks, strategy, strict=True)), segment=segment, storage=storage
        )
        names = tuple(self._coarse.mesh.axis_names)
        specs = [layouts.spec(var) for var, _ in state]
        used = [(None,) * len(names) if spec is None else dims_of_spec(spec, names) for spec in specs]
        return StrategyCost(
            cost=cost,
            times=split_times(cost, parts, late_sums),
            state=state_bytes(cost, parts, state=state, used=used, sizes=tuple(self._coarse.mesh.shape.values())),
            # Activations do not depend on the storage of state.
            recompute=self._recompute(cost, parts, interface) if storage is Storage.AS_USED else {},
        )

    def write_and_cost(self, segment: Segment, strategy: Strategy, *, storage: Storage) -> StrategyCost:
        """Returns the cost of a strategy under a storage of state."""
        assignment = dict(zip(segment.blocks, strategy, strict=True))
        program = self.programs.write_segments([segment], assignment, storage=storage)
        return self.cost(segment, strategy, program, storage=storage)

    def _recompute(
        self, cost: ProgramCost, parts: Sequence[StepPart], interface: SegmentInterface
    ) -> dict[Recompute, RecomputeCost]:
        values = self._parts.keep(cost.prepared, parts, interface)
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


def _time_again_s(cost: ProgramCost, recomputed: frozenset[int]) -> float:
    """Returns the seconds of kernels and collectives that recomputation runs again."""
    kernels = sum(kernel.time_s for kernel in cost.kernels if not recomputed.isdisjoint(kernel.positions))
    return kernels + sum(found.time_s for found in cost.collectives if found.position in recomputed)
