"""The parts of a step's programs, and the values that they keep: the same on all meshes, each program read once."""

from collections.abc import Sequence

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.interfaces import SegmentInterface
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import Var
from jaxquard.planner.prices.kept_values import ForwardValues, KeptValues
from jaxquard.planner.prices.state_bytes import StateOwners
from jaxquard.planner.prices.step_parts import StepPart, find_late_sums, find_parts, find_update
from jaxquard.planner.record.plan import Recompute
from jaxquard.pricing import ShardedProgram
from jaxquard.pricing.roofline.prepare import PreparedJaxpr


class ProgramParts:
    """Reads the programs of a step's segments."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._update = find_update(analysis.graph)
        self._owners = StateOwners(analysis, update=self._update)
        self._state: dict[Segment, tuple[tuple[Var, bool], ...]] = {}
        # By the ids of jaxprs, which are kept beside so that no other one gets them.
        self._parts: dict[int, tuple[object, tuple[StepPart, ...], frozenset[int]]] = {}
        self._kept: dict[int, tuple[object, dict[Recompute, KeptValues]]] = {}

    def state(self, segment: Segment) -> tuple[tuple[Var, bool], ...]:
        """Returns the state that a segment holds, each with whether it is a weight."""
        if segment not in self._state:
            inputs = set(self._analysis.interfaces.find(segment).inputs)
            self._state[segment] = tuple(self._owners.of_segment(segment, inputs))
        return self._state[segment]

    def find(self, program: ShardedProgram, interface: SegmentInterface) -> tuple[tuple[StepPart, ...], frozenset[int]]:
        """Returns the parts of a program's equations, and those whose sums over devices can wait."""
        closed = program.jaxpr
        if id(closed) not in self._parts:
            jaxpr = closed.jaxpr
            parts = find_parts(jaxpr, self._analysis, interface, update=self._update)
            self._parts[id(closed)] = closed, parts, find_late_sums(jaxpr, parts)
        _, parts, late_sums = self._parts[id(closed)]
        return parts, late_sums

    def keep(
        self, prepared: PreparedJaxpr, parts: Sequence[StepPart], interface: SegmentInterface
    ) -> dict[Recompute, KeptValues]:
        """Returns what each kind of recomputation keeps of a program's values."""
        key = id(prepared)
        if key not in self._kept:
            entering, data = self._inputs(prepared, interface)
            values = ForwardValues(prepared, parts, data=data, entering=entering)
            self._kept[key] = prepared, {recompute: values.keep(recompute) for recompute in Recompute}
        return self._kept[key][1]

    def _inputs(self, prepared: PreparedJaxpr, interface: SegmentInterface) -> tuple[set[int], set[int]]:
        """Returns the inputs of a program that come from segments before, and all that depend on data."""
        graph, numbers = self._analysis.graph, prepared.numbers

        def is_forward(var: Var) -> bool:
            position = graph.definitions.get(var)
            return position is not None and graph.phases[position] is EquationPhase.FORWARD

        data = {numbers[var] for var in interface.inputs if var in graph.data_vars}
        # An arriving value that only a barrier of another segment reads is no input.
        arriving = [found.var for found in interface.arriving if found.var in numbers and is_forward(found.var)]
        return {numbers[var] for var in arriving} & set(prepared.inputs), data
