"""Segment boundaries: the values that cross each, and their layouts on both sides.

A boundary value has the layout in which its producer leaves it, the layout in which its user wants it, or, in a segment
that it only passes through, the dim along which the largest value that enters that segment is sharded: so it is no
reason to reshard where segments are sharded alike. The cost of crossing a boundary therefore depends on the strategies
of the two segments beside it alone, however far the values go.

Boundaries between segments of the same kinds, with the same values to cross, are one object.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec

from jaxquard.intraop.segments.boundary_values import BoundaryValue
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.interfaces import SegmentInterface
from jaxquard.intraop.shardings.layouts import Layouts, StepLayouts, make_spec
from jaxquard.ir.jaxpr_tools import Var

# The shardings of the values that cross a boundary, on one side of it, in order; None: left to the compiler.
Specs = tuple[PartitionSpec | None, ...]


class BoundaryRole(enum.Enum):
    """The part that a segment has in a boundary value: it computes, uses, or only passes it on."""

    PRODUCES = "produces"
    USES = "uses"
    PASSES = "passes"

    def spec(self, layouts: Layouts, interface: SegmentInterface, var: Var) -> PartitionSpec | None:
        """Returns the sharding of the value in the segment; None: left to the compiler."""
        if self is BoundaryRole.PRODUCES:
            return layouts.spec(var)
        return layouts.entry_spec(var) if self is BoundaryRole.USES else _passing_spec(layouts, interface.entry, var)


def role_of(boundary_value: BoundaryValue, segment: int) -> BoundaryRole:
    """Returns the role of a segment for a value that crosses one of its boundaries."""
    if boundary_value.producer == segment:
        return BoundaryRole.PRODUCES
    is_used = any(place == segment for place, _ in boundary_value.uses)
    return BoundaryRole.USES if is_used else BoundaryRole.PASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundarySide:
    """One side of a segment boundary.

    Attributes:
        segment: the first one of those that are alike.
        roles: of that segment, for each value that crosses, with the value that stands for it there.
    """

    segment: Segment
    interface: SegmentInterface = field(repr=False)
    roles: tuple[tuple[BoundaryRole, Var], ...]

    def specs(self, layouts: StepLayouts, names: Sequence[Sequence[str]]) -> Specs:
        """Returns the shardings of the values, given the choices of the segment's blocks."""
        assignment = dict(zip(self.segment.blocks, names, strict=True))
        of_segment = layouts.lay_out(assignment, segment=self.segment)
        return tuple(role.spec(of_segment, self.interface, var) for role, var in self.roles)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boundary:
    """The boundary between two neighbouring segments.

    Attributes:
        avals: the types of the values that cross.
        forward: for each value, whether it goes from left to right.
    """

    left: BoundarySide
    right: BoundarySide
    avals: tuple[Any, ...]
    forward: tuple[bool, ...]

    def reshards(self, left: Specs, right: Specs) -> tuple[tuple[Any, PartitionSpec, PartitionSpec], ...]:
        """Returns the values whose sharding changes: the type, the sharding before, and the one after."""
        found = []
        for aval, is_forward, a, b in zip(self.avals, self.forward, left, right, strict=True):
            if a is not None and b is not None and a != b:
                found.append((aval, a, b) if is_forward else (aval, b, a))
        return tuple(found)


def find_boundaries(layouts: StepLayouts) -> tuple[Boundary, ...]:
    """Returns the segment boundaries of a step, in order."""
    segments = layouts.analysis.segments
    crossing: list[list[tuple[BoundaryValue, bool]]] = [[] for _ in segments[1:]]
    for boundary_value in layouts.analysis.boundary_values.values():
        ends = [segment for segment, _ in boundary_value.uses]
        for place in range(boundary_value.producer, max(ends)):
            crossing[place].append((boundary_value, True))
        for place in range(min(ends), boundary_value.producer):
            crossing[place].append((boundary_value, False))
    sides = _Sides(layouts)
    made: dict[object, Boundary] = {}
    boundaries = []
    for number, found in enumerate(crossing):
        values = [boundary_value for boundary_value, _ in found]
        left, right = (sides.side(segments[number + side], values) for side in (0, 1))
        avals = tuple(boundary_value.var.aval for boundary_value in values)
        forward = tuple(is_forward for _, is_forward in found)
        key = left.segment.number, left.roles, right.segment.number, right.roles, forward, tuple(map(str, avals))
        boundaries.append(made.setdefault(key, Boundary(left=left, right=right, avals=avals, forward=forward)))
    return tuple(boundaries)


class _Sides:
    """Finds, for each segment, the first one of its kind with the same boundary values, and the values there."""

    def __init__(self, layouts: StepLayouts):
        self.segments = layouts.analysis.segments
        self.interfaces = [layouts.interface(segment) for segment in self.segments]
        self.first: dict[object, int] = {}
        self.passing: dict[str, Var] = {}

    def side(self, segment: Segment, boundary_values: Sequence[BoundaryValue]) -> BoundarySide:
        interface = self.interfaces[segment.number]
        types = [[str(found.var.aval) for found in of] for of in (interface.arriving, interface.leaving)]
        number = self.first.setdefault((segment.kind, str(types)), segment.number)
        first = self.interfaces[number]
        stands_for = {
            found.var: other.var
            for here, there in ((interface.arriving, first.arriving), (interface.leaving, first.leaving))
            for found, other in zip(here, there, strict=True)
        }
        roles = []
        for boundary_value in boundary_values:
            role = role_of(boundary_value, segment.number)
            # All values of one type that only pass are alike.
            passing = self.passing.setdefault(str(boundary_value.var.aval), boundary_value.var)
            roles.append((role, passing if role is BoundaryRole.PASSES else stands_for[boundary_value.var]))
        return BoundarySide(segment=self.segments[number], interface=first, roles=tuple(roles))


def _passing_spec(layouts: Layouts, entry: Var | None, var: Var) -> PartitionSpec:
    """Returns the sharding of a value like that of the entry: first dims correspond, others count from the last."""
    rank = len(var.aval.shape)
    dims: dict[str, int | None] = {}
    for axis, of_axis in layouts.of_axes.items():
        dim = None if entry is None else of_axis.entries.get(entry)
        if dim and entry is not None:
            dim += rank - len(entry.aval.shape)
        dims[axis] = dim if dim is not None and 0 <= dim < rank else None
    return make_spec(var.aval.shape, dims, layouts.axes)
