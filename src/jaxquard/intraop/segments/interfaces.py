"""The inputs and outputs of segments: boundary values, state, gradients; each segment is read once, for all meshes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Cotangent, Matches
from jaxquard.intraop.segments.boundary_values import BoundaryValue
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import Var, is_var, size_bytes, variables


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInterface:
    """The inputs and outputs of a segment, or of neighbouring segments taken as one.

    Attributes:
        positions: of the segment's equations.
        inputs: all values that the segment uses and does not compute.
        outputs: all values that the segment computes and others use, or the step returns.
        arriving: the boundary values among the inputs.
        leaving: the boundary values among the outputs.
        entry: the largest activation that comes in; None for a segment that only data enters.
        state: the state that it uses or replaces, each with its next value, in the order of the step's inputs.
        cotangents: the gradients of its contractions' operands and results.
    """

    positions: tuple[int, ...] = field(repr=False)
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    arriving: tuple[BoundaryValue, ...]
    leaving: tuple[BoundaryValue, ...]
    entry: Var | None
    state: tuple[tuple[Var, Var], ...] = field(repr=False)
    cotangents: tuple[tuple[Var, Cotangent], ...] = field(repr=False)


class SegmentInterfaces:
    """Finds the interfaces of a step's segments; the step is walked over once for all of them.

    Args:
        owners: the block of each equation.
    """

    def __init__(
        self, graph: StepGraph, owners: Sequence[int], boundary_values: Mapping[Var, BoundaryValue], matches: Matches
    ) -> None:
        self._graph = graph
        self._results = set(graph.outputs)
        self._positions: dict[int, list[int]] = {}
        for position, owner in enumerate(owners):
            self._positions.setdefault(owner, []).append(position)
        self._arriving: dict[int, list[BoundaryValue]] = {}
        self._leaving: dict[int, list[BoundaryValue]] = {}
        for found in boundary_values.values():
            self._leaving.setdefault(found.producer, []).append(found)
            for segment in dict.fromkeys(segment for segment, _ in found.uses):
                self._arriving.setdefault(segment, []).append(found)
        self._cotangents: dict[int, list[tuple[int, Var, Cotangent]]] = {}
        for number, (var, cotangent) in enumerate(matches.cotangents.items()):
            of_block = self._cotangents.setdefault(owners[cotangent.position], [])
            of_block.append((number, var, cotangent))
        self._state = _state_values(graph)
        self._known: dict[Segment, SegmentInterface] = {}

    def find(self, segment: Segment) -> SegmentInterface:
        """Returns the inputs and outputs of a segment."""
        if segment not in self._known:
            self._known[segment] = self._read(segment)
        return self._known[segment]

    def positions_of(self, block: int) -> Sequence[int]:
        """Returns the positions of the equations that a block owns, in order."""
        return self._positions.get(block, ())

    def _read(self, segment: Segment) -> SegmentInterface:
        graph, equations, number = self._graph, self._graph.equations, segment.number
        positions = tuple(sorted(position for block in segment.blocks for position in self.positions_of(block)))
        inside = set(positions)
        made = {var for position in positions for var in equations[position].outvars}
        used = dict.fromkeys(var for position in positions for var in variables(equations[position].invars))
        inputs = tuple(var for var in used if var not in made)
        outputs = tuple(
            var
            for position in positions
            for var in equations[position].outvars
            if var in self._results or any(user not in inside for user in graph.users.get(var, ()))
        )
        arriving = tuple(self._arriving.get(number, ()))
        of_blocks = sorted(
            (found for block in segment.blocks for found in self._cotangents.get(block, ())), key=lambda found: found[0]
        )
        return SegmentInterface(
            positions=positions,
            inputs=inputs,
            outputs=outputs,
            arriving=arriving,
            leaving=tuple(self._leaving.get(number, ())),
            entry=_largest(found.var for found in arriving if (number, EquationPhase.FORWARD) in found.uses),
            state=self._find_state(set(inputs), inside),
            cotangents=tuple((var, cotangent) for _, var, cotangent in of_blocks),
        )

    def _find_state(self, inputs: set[Var], inside: set[int]) -> tuple[tuple[Var, Var], ...]:
        definitions = self._graph.definitions
        return tuple((var, out) for var, out in self._state if var in inputs or definitions.get(out) in inside)


def _state_values(graph: StepGraph) -> list[tuple[Var, Var]]:
    """Returns the state of a step that is an array, each with its next value; without what becomes a constant."""
    step = graph.step
    pairs = zip(step.jaxpr.invars, step.result_of_input, strict=True)
    found = ((var, step.jaxpr.outvars[result]) for var, result in pairs if result is not None)
    return [(var, out) for var, out in found if is_var(out)]


def _largest(values: Iterable[Var]) -> Var | None:
    return max(values, key=lambda var: size_bytes(var.aval), default=None)
