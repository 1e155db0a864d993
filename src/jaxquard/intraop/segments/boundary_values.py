"""What travels between segments: activations, their gradients, and activations that a checkpoint computes again.

    forward    an activation goes to later segments, next door or further (a skip, an encoder's memory)
    backward   its gradient comes back, in as many parts as there are segments to add some

Each is resharded at every border that it crosses, as the segment behind it wants it (`copy_at_borders`). A gradient
is cut as the value that it belongs to. Where several values of its shape come into question, it belongs to the one that
goes through the contractions whose backward the gradient went through. Gradients of state, and what stems from state or
from data alone (masks), do not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Matches
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.step.phases import COPIES, Phase
from jaxquard.ir.jaxpr_tools import Var, variables

# A segment in one of its phases.
Side = tuple[int, Phase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traveller:
    """A value on its way.

    Attributes:
        maker: the segment that makes it.
        uses: where it is used.
        value: what it is a gradient of, or computed again; None for an activation, and for a gradient that belongs to
            a value inside a segment (`match_backward`).
        is_saved: whether the backward uses what the forward left; a checkpoint takes a value anew.
    """

    var: Var
    maker: int
    uses: tuple[Side, ...]
    value: Var | None = None
    is_saved: bool = field(default=True, repr=False)

    def segments_to(self, segment: int) -> range:
        """The segments on the way to one, itself included."""
        return range(self.maker + 1, segment + 1) if segment > self.maker else range(self.maker - 1, segment - 1, -1)


def find_travellers(
    graph: StepGraph, owners: Sequence[int], segments: Sequence[Segment], matches: Matches
) -> dict[Var, Traveller]:
    """All values that travel, in the order of the step."""
    of_block = {block: segment.number for segment in segments for block in segment.blocks}
    places = _Places(graph, [of_block[owner] for owner in owners])
    on_the_way = [traveller for traveller in _crossing(graph, places) if _is_activation(graph, traveller, matches)]
    forward = [found for found in on_the_way if _phase(graph, found.var) is Phase.FORWARD]
    finder = _ValueFinder(graph, matches, forward)
    found: dict[Var, Traveller] = {}
    for traveller in on_the_way:
        var = traveller.var
        value = None if _phase(graph, var) is Phase.FORWARD else finder.value_of(traveller)
        if value is not None or var in matches.cotangents or _phase(graph, var) is Phase.FORWARD:
            found[var] = Traveller(
                var=var, maker=traveller.maker, uses=traveller.uses, value=value, is_saved=traveller.is_saved
            )
    return found


class _Places:
    """The segments of values, where they are made and used.

    What a barrier hands through to one segment alone is taken to be that segment's, whoever owns the barrier.
    """

    def __init__(self, graph: StepGraph, places: Sequence[int]):
        self.graph = graph
        self.places = places

    def of_output(self, position: int, var: Var) -> int:
        if self.graph.equations[position].primitive.name in COPIES:
            takers = {self.places[user] for user in self.graph.users.get(var, ())}
            if len(takers) == 1:
                return takers.pop()
        return self.places[position]

    def of_use(self, position: int, var: Var) -> int:
        equation = self.graph.equations[position]
        if equation.primitive.name in COPIES and len(equation.invars) == len(equation.outvars):
            return self.of_output(position, equation.outvars[list(equation.invars).index(var)])
        return self.places[position]


def _crossing(graph: StepGraph, places: _Places) -> Iterable[Traveller]:
    """The arrays that segments hand to others, but for updates."""
    for position, equation in enumerate(graph.equations):
        for var in equation.outvars if graph.phases[position] is not Phase.UPDATE else ():
            here = places.of_output(position, var)
            takers = [user for user in graph.users.get(var, ()) if graph.phases[user] is not Phase.UPDATE]
            sides = {user: (places.of_use(user, var), graph.phases[user]) for user in takers if var.aval.shape}
            sides = {user: side for user, side in sides.items() if side[0] != here}
            if sides:
                late = [user for user, (_, phase) in sides.items() if phase is Phase.BACKWARD]
                yield Traveller(
                    var=var,
                    maker=here,
                    uses=tuple(dict.fromkeys(sides.values())),
                    is_saved=not any(graph.equations[user].primitive.name in COPIES for user in late),
                )


def _is_activation(graph: StepGraph, traveller: Traveller, matches: Matches) -> bool:
    """Whether a value is an activation, or of one, for all that is known."""
    var = graph.first(traveller.var)
    if var not in graph.data_vars or var not in graph.definitions:
        return False
    cotangent = matches.cotangents.get(var)
    if cotangent is not None and cotangent.place is not None:
        return graph.equations[cotangent.position].invars[cotangent.place] in graph.data_vars
    return graph.ancestors[graph.definitions[var]] != 0


def _phase(graph: StepGraph, var: Var) -> Phase:
    return graph.phases[graph.definitions[var]]


class _ValueFinder:
    """Finds the values that gradients belong to."""

    def __init__(self, graph: StepGraph, matches: Matches, forward: Sequence[Traveller]):
        self.graph = graph
        self.matches = matches
        self.by_shape: dict[tuple[int, ...], list[Traveller]] = {}
        self.values: dict[Var, Var | None] = {}
        for traveller in forward:
            self.by_shape.setdefault(traveller.var.aval.shape, []).append(traveller)

    def value_of(self, traveller: Traveller) -> Var | None:
        first = self.graph.first(traveller.var)
        if first is not traveller.var:
            return first if _phase(self.graph, first) is Phase.FORWARD else self.values.get(first)
        self.values[first] = self._nearest(traveller)
        return self.values[first]

    def _nearest(self, traveller: Traveller) -> Var | None:
        nearest = max(segment for segment, _ in traveller.uses)
        fitting = [
            other.var
            for other in self.by_shape.get(traveller.var.aval.shape, ())
            if other.maker <= nearest and max(segment for segment, _ in other.uses) >= traveller.maker
        ]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        return min(fitting, key=lambda value: self._difference(traveller.var, value))

    def _difference(self, gradient: Var, value: Var) -> int:
        """How many contractions lie on the way of only one of the two, after the border and before it."""
        before = self.graph.ancestors[self.graph.definitions[value]] & self._matched
        after = self._forward_masks.get(value, 0) & self._matched
        found = after ^ self._masks_before.get(gradient, 0), before ^ self._masks_after.get(gradient, 0)
        return sum(mask.bit_count() for mask in found)

    @cached_property
    def _matched(self) -> int:
        return sum(self.graph.bit(position) for position in set(self.matches.partners.values()))

    @cached_property
    def _forward_masks(self) -> dict[Var, int]:
        """For each value, the contractions that depend on it."""
        contractions = self.graph.contractions
        bits = {position: self.graph.bit(position) for position in contractions}
        return self._reach(reversed(range(len(self.graph.equations))), bits, Phase.FORWARD, is_up=True)

    @cached_property
    def _masks_before(self) -> dict[Var, int]:
        """For each gradient, the forward contractions whose backward it depends on."""
        return self._reach(range(len(self.graph.equations)), self._partner_bits, Phase.BACKWARD, is_up=False)

    @cached_property
    def _masks_after(self) -> dict[Var, int]:
        """For each gradient, the forward contractions whose backward depends on it."""
        return self._reach(reversed(range(len(self.graph.equations))), self._partner_bits, Phase.BACKWARD, is_up=True)

    @cached_property
    def _partner_bits(self) -> dict[int, int]:
        return {position: self.graph.bit(forward) for position, forward in self.matches.partners.items()}

    def _reach(self, positions: Iterable[int], bits: Mapping[int, int], phase: Phase, *, is_up: bool) -> dict[Var, int]:
        """Bits of equations of a phase, carried from outputs to inputs, or the other way."""
        masks: dict[Var, int] = {}
        for position in positions:
            if self.graph.phases[position] is not phase:
                continue
            equation = self.graph.equations[position]
            inputs, outputs = variables(equation.invars), equation.outvars
            sources, targets = (outputs, inputs) if is_up else (inputs, outputs)
            mask = bits.get(position, 0)
            for var in sources:
                mask |= masks.get(var, 0)
            for var in targets:
                masks[var] = masks.get(var, 0) | mask
        return masks
