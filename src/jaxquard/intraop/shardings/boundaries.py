"""The borders between neighbouring segments: what crosses each, and how the segments on both sides have it.

A value is cut as its maker leaves it, as its user wants it, or, in a segment that it only passes through, along the
same dim as the largest value that comes in, so that it is no reason to reshard where segments are cut alike. So what
it costs to cross a border depends on the strategies on its two sides alone, however far values travel.

Borders between segments of the same kinds with the same to cross are one object.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.boundary_values import Traveller
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.shardings.crossings import Crossing, find_crossing
from jaxquard.intraop.shardings.layouts import Layouts, lay_out, make_spec
from jaxquard.ir.jaxpr_tools import Var

# How values are cut on one side of a border, in order; None: as the compiler likes.
Specs = tuple[PartitionSpec | None, ...]


class Role(enum.Enum):
    """What a segment has to do with a value that travels."""

    MAKES = "makes"
    USES = "uses"
    PASSES = "passes"

    def spec(self, layouts: Layouts, crossing: Crossing, var: Var) -> PartitionSpec | None:
        """How the segment has the value; None: as the compiler likes."""
        if self is Role.MAKES:
            return layouts.spec(var)
        return layouts.entry_spec(var) if self is Role.USES else _passing_spec(layouts, crossing.entry, var)


def role_of(traveller: Traveller, segment: int) -> Role:
    """What a segment on the way of a value has to do with it."""
    if traveller.maker == segment:
        return Role.MAKES
    return Role.USES if any(place == segment for place, _ in traveller.uses) else Role.PASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """One side of a border.

    Attributes:
        segment: the first one of those that are alike.
        roles: of that segment, for each value that crosses, with the value that stands in its place there.
    """

    segment: Segment
    crossing: Crossing = field(repr=False)
    roles: tuple[tuple[Role, Var], ...]

    def specs(self, analysis: Analysis, names: Sequence[Sequence[str]]) -> Specs:
        """How the values are cut, given the choices of the segment's blocks."""
        assignment = dict(zip(self.segment.blocks, names, strict=True))
        layouts = lay_out(analysis, assignment, segment=self.segment)
        return tuple(role.spec(layouts, self.crossing, var) for role, var in self.roles)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Border:
    """A border between two segments.

    Attributes:
        avals: of what crosses.
        forward: for each, whether it goes from left to right.
    """

    left: Bank
    right: Bank
    avals: tuple[Any, ...]
    forward: tuple[bool, ...]

    def moves(self, left: Specs, right: Specs) -> tuple[tuple[Any, PartitionSpec, PartitionSpec], ...]:
        """What must be resharded: types, from how they are cut to how they are wanted."""
        found = []
        for aval, is_forward, a, b in zip(self.avals, self.forward, left, right, strict=True):
            if a is not None and b is not None and a != b:
                found.append((aval, a, b) if is_forward else (aval, b, a))
        return tuple(found)


def find_borders(analysis: Analysis) -> tuple[Border, ...]:
    """The borders of a step, in order."""
    segments = analysis.segments
    crossing: list[list[tuple[Traveller, bool]]] = [[] for _ in segments[1:]]
    for traveller in analysis.travellers.values():
        ends = [segment for segment, _ in traveller.uses]
        for border in range(traveller.maker, max(ends)):
            crossing[border].append((traveller, True))
        for border in range(min(ends), traveller.maker):
            crossing[border].append((traveller, False))
    alike = _Alike(analysis)
    made: dict[object, Border] = {}
    borders = []
    for number, found in enumerate(crossing):
        travellers = [traveller for traveller, _ in found]
        left, right = (alike.bank(segments[number + side], travellers) for side in (0, 1))
        avals = tuple(traveller.var.aval for traveller in travellers)
        forward = tuple(is_forward for _, is_forward in found)
        key = left.segment.number, left.roles, right.segment.number, right.roles, forward, tuple(map(str, avals))
        borders.append(made.setdefault(key, Border(left=left, right=right, avals=avals, forward=forward)))
    return tuple(borders)


class _Alike:
    """Finds, for each segment, the first one of its kind with the same to hand over, and its values."""

    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        self.crossings = [find_crossing(analysis, segment) for segment in analysis.segments]
        self.first: dict[object, int] = {}
        self.passing: dict[str, Var] = {}

    def bank(self, segment: Segment, travellers: Sequence[Traveller]) -> Bank:
        crossing = self.crossings[segment.number]
        types = [[str(found.var.aval) for found in of] for of in (crossing.arriving, crossing.leaving)]
        number = self.first.setdefault((segment.kind, str(types)), segment.number)
        first = self.crossings[number]
        stands_for = {
            found.var: other.var
            for here, there in ((crossing.arriving, first.arriving), (crossing.leaving, first.leaving))
            for found, other in zip(here, there, strict=True)
        }
        roles = []
        for traveller in travellers:
            role = role_of(traveller, segment.number)
            # All that only pass are alike.
            passing = self.passing.setdefault(str(traveller.var.aval), traveller.var)
            roles.append((role, passing if role is Role.PASSES else stands_for[traveller.var]))
        return Bank(segment=self.analysis.segments[number], crossing=first, roles=tuple(roles))


def _passing_spec(layouts: Layouts, entry: Var | None, var: Var) -> PartitionSpec:
    """The first dim is the same as the first; others are counted from the last one."""
    rank = len(var.aval.shape)
    dims: dict[str, int | None] = {}
    for axis, of_axis in layouts.entries.items():
        dim = None if entry is None else of_axis.get(entry)
        if dim and entry is not None:
            dim += rank - len(entry.aval.shape)
        dims[axis] = dim if dim is not None and 0 <= dim < rank else None
    return make_spec(var.aval.shape, dims, layouts.axes)
