"""Groups of equations that one kernel computes, and the values that it reads and writes.

Elementwise equations are computed with their neighbours: in a group, a value that only the group uses never reaches
memory. A reduction ends a group, and so does a product. Views are read through: a group that uses a broadcast reads
what is broadcast.

    a = dot x w                  dot reads x, w and writes a
    b = add a c ; d = tanh b     one kernel reads a, c and writes d
    e = dot d v                  dot reads d, v and writes e

Equations of different parts (forward, backward, update) are in different programs, and never in one group.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from jaxquard.pricing.roofline.prepare import NO_VALUE, PreparedJaxpr, WorkKind

_IN_GROUPS = (WorkKind.FUSED, WorkKind.REDUCTION)
_MOST_FUSED = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedKernel:
    """Equations that run as one kernel.

    Attributes:
        positions: of the equations.
        read: for each value that it reads, the value and those that it is a view of, of which the smallest is read.
        written: the values that others use.
    """

    positions: tuple[int, ...]
    read: tuple[tuple[int, ...], ...]
    written: tuple[int, ...]


def fuse_equations(prepared: PreparedJaxpr, parts: Sequence[Hashable] | None = None) -> tuple[FusedKernel, ...]:
    """Returns the kernels of a jaxpr, in order.

    Args:
        parts: for each equation, the program that it belongs to.
    """
    finder = _Groups(prepared, parts or [None] * len(prepared.equations))
    return tuple(finder.kernel(positions) for positions in finder.groups())


def find_ends(prepared: PreparedJaxpr, kernels: Sequence[FusedKernel]) -> tuple[tuple[int, ...], ...]:
    """Returns for each kernel the values that are not needed after it; results of the jaxpr are."""
    kept = set(prepared.outputs)
    last = {number: place for place, kernel in enumerate(kernels) for number in kernel.written}
    for place, kernel in enumerate(kernels):
        for chain in kernel.read:
            if chain[-1] in last:
                last[chain[-1]] = max(last[chain[-1]], place)
    ends: list[list[int]] = [[] for _ in kernels]
    for number, place in last.items():
        if number not in kept:
            ends[place].append(number)
    return tuple(map(tuple, ends))


# The kernels of a jaxpr, and the values that end with each.
FusedJaxpr = tuple[tuple[FusedKernel, ...], tuple[tuple[int, ...], ...]]


class FusedJaxprs:
    """The kernels of prepared jaxprs, each found once; those that were used last are kept."""

    def __init__(self) -> None:
        # By ids; the objects are kept beside, so that no others get theirs.
        self._known: OrderedDict[tuple[int, int], tuple[object, object, FusedJaxpr]] = OrderedDict()

    def find(self, prepared: PreparedJaxpr, parts: Sequence[Hashable] | None) -> FusedJaxpr:
        """Returns the kernels of a jaxpr whose equations belong to these parts, and the values that end with each."""
        key = id(prepared), id(parts)
        if key not in self._known:
            kernels = fuse_equations(prepared, parts)
            self._known[key] = prepared, parts, (kernels, find_ends(prepared, kernels))
            if len(self._known) > _MOST_FUSED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key][2]


class _Groups:
    def __init__(self, prepared: PreparedJaxpr, parts: Sequence[Hashable]):
        self.equations = prepared.equations
        self.parts = parts
        self.made_by: dict[int, int] = {}
        self.group: list[int] = list(range(len(self.equations)))
        levels: list[int] = []
        for position, equation in enumerate(self.equations):
            levels.append(self._level(position, levels))
            self.made_by.update((number, position) for number in equation.outputs)
            if equation.kind in _IN_GROUPS:
                self._join(position, levels)
        self.results = set(prepared.outputs)
        self.readers = self._find_readers()

    def groups(self) -> list[tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for position, equation in enumerate(self.equations):
            if equation.kind is not WorkKind.VIEW and equation.outputs:
                found.setdefault(self._root(position), []).append(position)
        return [tuple(positions) for positions in found.values()]

    def kernel(self, positions: tuple[int, ...]) -> FusedKernel:
        inside = {number for position in positions for number in self.equations[position].outputs}
        chains = (self.chain(number) for position in positions for number in self.equations[position].inputs)
        read = {chain[-1]: chain for chain in chains if chain and inside.isdisjoint(chain)}
        group = self._root(positions[0])
        written = [number for number in inside if number in self.results or self.readers.get(number, set()) - {group}]
        return FusedKernel(positions=positions, read=tuple(read.values()), written=tuple(sorted(written)))

    def chain(self, number: int) -> tuple[int, ...]:
        """Returns a value and those that it is a view of, the last one no view; empty for constants such as iotas."""
        chain = []
        while number != NO_VALUE:
            chain.append(number)
            position = self.made_by.get(number)
            if position is None or self.equations[position].kind is not WorkKind.VIEW:
                return tuple(chain)
            equation = self.equations[position]
            place = equation.outputs.index(number) if equation.follows_inputs else 0
            number = equation.inputs[place] if equation.inputs else NO_VALUE
        return ()

    def _level(self, position: int, levels: Sequence[int]) -> int:
        """Returns the number of kernels that must end before this equation, at most."""
        level = 0
        for number in self.equations[position].inputs:
            source = self.made_by.get(number)
            if source is None:
                continue
            is_after = self.equations[source].kind not in (WorkKind.FUSED, WorkKind.VIEW)
            is_kernel = self.equations[position].kind not in (*_IN_GROUPS, WorkKind.VIEW)
            is_fused = self.equations[source].kind is WorkKind.FUSED
            level = max(level, levels[source] + (1 if is_after or (is_kernel and is_fused) else 0))
        return level

    def _join(self, position: int, levels: Sequence[int]) -> None:
        """Puts an equation into the groups of what it reads, where they run at the same level and in the same part."""
        for number in self.equations[position].inputs:
            chain = self.chain(number)
            source = self.made_by.get(chain[-1]) if chain else None
            if source is None or self.equations[source].kind is not WorkKind.FUSED:
                continue
            if levels[source] == levels[position] and self.parts[source] == self.parts[position]:
                self.group[self._root(source)] = self._root(position)

    def _root(self, position: int) -> int:
        while self.group[position] != position:
            self.group[position] = self.group[self.group[position]]
            position = self.group[position]
        return position

    def _find_readers(self) -> dict[int, set[int]]:
        """Returns, for each value, the groups that read it, through views or not."""
        found: dict[int, set[int]] = {}
        for position, equation in enumerate(self.equations):
            if equation.kind is not WorkKind.VIEW:
                for number in equation.inputs:
                    for read in self.chain(number):
                        found.setdefault(read, set()).add(self._root(position))
        for number in self.results:
            for read in self.chain(number)[1:]:
                found.setdefault(read, set()).add(NO_VALUE)
        return found
