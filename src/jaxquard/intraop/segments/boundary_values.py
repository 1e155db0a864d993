"""Boundary values: activations and gradients that cross from one segment to another.

    forward    an activation goes to later segments: the next one, or further (a skip, an encoder's memory)
    backward   its gradient comes back, in as many terms as there are segments that contribute one;
               a checkpoint computes activations again, and they cross too

A boundary value is resharded at every segment boundary that it crosses, to the layout that the segment behind the
boundary wants. A gradient has the layout of the value that it is a gradient of. Where several values have its shape, it
belongs to the one that went through the contractions whose backward the gradient goes to. Gradients of state, and
values that depend on state or data alone (masks), are no boundary values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Matches
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.step.phases import COPIES, EquationPhase
from jaxquard.ir.jaxpr_tools import Var, variables

# The number of a segment, and one of its phases.
SegmentPhase = tuple[int, EquationPhase]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryValue:
    """An activation or a gradient that crosses segment boundaries.

    Attributes:
        producer: the number of the segment that computes it.
        uses: the other segments that use it, each with the phase of the use.
        value: the forward value that it is a gradient of, or that it recomputes; None for an activation, and for a
            gradient of a value inside a segment (`match_backward`).
        is_saved: whether the backward uses the value that the forward saved; a checkpoint recomputes it.
    """

    var: Var
    producer: int
    uses: tuple[SegmentPhase, ...]
    value: Var | None = None
    is_saved: bool = field(default=True, repr=False)

    def segments_to(self, segment: int) -> range:
        """Returns the segments between the producer and another segment, with that one, in order."""
        return (
            range(self.producer + 1, segment + 1)
            if segment > self.producer
            else range(self.producer - 1, segment - 1, -1)
        )


def find_boundary_values(
    graph: StepGraph, owners: Sequence[int], segments: Sequence[Segment], matches: Matches
) -> dict[Var, BoundaryValue]:
    """Returns all boundary values, in the order of the step."""
    of_block = {block: segment.number for segment in segments for block in segment.blocks}
    places = _Places(graph, [of_block[owner] for owner in owners])
    crossing = [
        boundary_value
        for boundary_value in _crossing_values(graph, places)
        if _is_activation(graph, boundary_value, matches)
    ]
    forward = [found for found in crossing if _phase(graph, found.var) is EquationPhase.FORWARD]
    finder = _ValueFinder(graph, matches, forward)
    found: dict[Var, BoundaryValue] = {}
    for boundary_value in crossing:
        var = boundary_value.var
        value = None if _phase(graph, var) is EquationPhase.FORWARD else finder.value_of(boundary_value)
        if value is not None or var in matches.cotangents or _phase(graph, var) is EquationPhase.FORWARD:
            found[var] = replace(boundary_value, value=value)
    return found


class _Places:
    """The segments that compute and use values.

    An output of a barrier that one segment alone uses counts as that segment's, whichever block owns the barrier.
    """

    def __init__(self, graph: StepGraph, places: Sequence[int]):
        self.graph = graph
        self.places = places

    def of_output(self, position: int, var: Var) -> int:
        if self.graph.equations[position].primitive.name in COPIES:
            consumers = {self.places[user] for user in self.graph.users.get(var, ())}
            if len(consumers) == 1:
                return consumers.pop()
        return self.places[position]

    def of_use(self, position: int, var: Var) -> int:
        equation = self.graph.equations[position]
        if equation.primitive.name in COPIES and len(equation.invars) == len(equation.outvars):
            return self.of_output(position, equation.outvars[list(equation.invars).index(var)])
        return self.places[position]


def _crossing_values(graph: StepGraph, places: _Places) -> Iterable[BoundaryValue]:
    """Yields the arrays that one segment computes and others use, without those of the update."""
    for position, equation in enumerate(graph.equations):
        for var in equation.outvars if graph.phases[position] is not EquationPhase.UPDATE else ():
            here = places.of_output(position, var)
            consumers = [user for user in graph.users.get(var, ()) if graph.phases[user] is not EquationPhase.UPDATE]
            sides = {user: (places.of_use(user, var), graph.phases[user]) for user in consumers if var.aval.shape}
            sides = {user: side for user, side in sides.items() if side[0] != here}
            if sides:
                late = [user for user, (_, phase) in sides.items() if phase is EquationPhase.BACKWARD]
                yield BoundaryValue(
                    var=var,
                    producer=here,
                    uses=tuple(dict.fromkeys(sides.values())),
                    is_saved=not any(graph.equations[user].primitive.name in COPIES for user in late),
                )


def _is_activation(graph: StepGraph, boundary_value: BoundaryValue, matches: Matches) -> bool:
    """Returns true for an activation, the gradient of one, and what may be either."""
    var = graph.first(boundary_value.var)
    if var not in graph.data_vars or var not in graph.definitions:
        return False
    cotangent = matches.cotangents.get(var)
    if cotangent is not None and cotangent.place is not None:
        return graph.equations[cotangent.position].invars[cotangent.place] in graph.data_vars
    return graph.ancestors[graph.definitions[var]] != 0


def _phase(graph: StepGraph, var: Var) -> EquationPhase:
    return graph.phases[graph.definitions[var]]


class _ValueFinder:
    """Finds the forward values that gradients belong to."""

    def __init__(self, graph: StepGraph, matches: Matches, forward: Sequence[BoundaryValue]):
        self.graph = graph
        self.matches = matches
        self.by_shape: dict[tuple[int, ...], list[BoundaryValue]] = {}
        self.values: dict[Var, Var | None] = {}
        for boundary_value in forward:
            self.by_shape.setdefault(boundary_value.var.aval.shape, []).append(boundary_value)

    def value_of(self, boundary_value: BoundaryValue) -> Var | None:
        first = self.graph.first(boundary_value.var)
        if first is not boundary_value.var:
            return first if _phase(self.graph, first) is EquationPhase.FORWARD else self.values.get(first)
        self.values[first] = self._nearest(boundary_value)
        return self.values[first]

    def _nearest(self, boundary_value: BoundaryValue) -> Var | None:
        nearest = max(segment for segment, _ in boundary_value.uses)
        fitting = [
            other.var
            for other in self.by_shape.get(boundary_value.var.aval.shape, ())
            if other.producer <= nearest and max(segment for segment, _ in other.uses) >= boundary_value.producer
        ]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        return min(fitting, key=lambda value: self._difference(boundary_value.var, value))

    def _difference(self, gradient: Var, value: Var) -> int:
        """Counts the contractions before the boundary that only one of the two passes through."""
        before = self.graph.ancestors[self.graph.definitions[value]] & self._matched
        return (before ^ self._masks.get(gradient, 0)).bit_count()

    @cached_property
    def _matched(self) -> int:
        """The forward contractions that have a backward one, as bits."""
        return sum(map(self.graph.bit, {found.forward for found in self.matches.contractions.values()}))

    @cached_property
    def _masks(self) -> dict[Var, int]:
        """The forward contractions whose backward depends on each gradient."""
        masks: dict[Var, int] = {}
        for position in reversed(range(len(self.graph.equations))):
            if self.graph.phases[position] is not EquationPhase.BACKWARD:
                continue
            matched, equation = self.matches.contractions.get(position), self.graph.equations[position]
            mask = 0 if matched is None else self.graph.bit(matched.forward)
            for var in equation.outvars:
                mask |= masks.get(var, 0)
            for var in variables(equation.invars):
                masks[var] = masks.get(var, 0) | mask
        return masks
