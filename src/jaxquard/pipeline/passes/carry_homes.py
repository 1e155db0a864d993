"""Finds the tasks that make the results of a loop that need nothing but its inputs: "free" results.

A carried value whose next one is free (a key, a count, a scale that is computed from a history) is made where it is
read, in the phase that reads it first: a scale of gradients in the backward, or the history that the backward updates
would be wanted by the forward. Small ones are made by every stage that reads them, so that none is sent; a large or
costly one by the first of its readers alone. One that nothing reads is made where the values it is made of are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from jaxquard.ir import operations
from jaxquard.ir.jaxpr_tools import Equation, Var, definitions, is_var, make_jaxpr, size_bytes, variables
from jaxquard.ir.task import Phase
from jaxquard.pipeline.body_uses import body_uses, recomputed_for
from jaxquard.pipeline.loop import Loop, Place

_ORDER = (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)


@dataclass(slots=True, kw_only=True)
class _FreeResult:
    """A result that needs nothing but inputs.

    Attributes:
        carried: which carried input it becomes, if any.
        operands: the inputs that it is made of.
        costly: positions of the equations that make it and that no two tasks should do.
        is_single: True if one task alone makes it.
        readers: places that read the carried input; for another result, the place that makes it.
    """

    carried: int | None
    operands: frozenset[Var]
    costly: frozenset[int]
    is_single: bool
    readers: set[Place] = field(default_factory=set)

    @property
    def places(self) -> list[Place]:
        if self.is_single:
            return [_earliest(self.readers)] if self.readers else []
        stages = sorted({place.stage for place in self.readers})
        return [_earliest(place for place in self.readers if place.stage == stage) for stage in stages]


class CarryHomes:
    """The places that make the free results of a loop, and its costly equations that have no place yet."""

    def __init__(self, equation: Equation, costly: frozenset[int]) -> None:
        self.loop: Loop = equation.params["loop"]
        self.body = equation.params["body"].jaxpr
        self.inputs = self.body.invars[self.loop.num_constants : self.loop.first_leaf]
        self.definition = definitions(self.body.eqns)
        self.costly = costly
        self.free: dict[int, _FreeResult] = {}
        for result, atom in enumerate(self.body.outvars):
            if (found := self._free_result(result, atom)) is not None:
                self.free[result] = found
        self.uses = self._direct_uses()
        self._find_readers()

    @property
    def of_result(self) -> dict[int, list[Place]]:
        """For each free result, the places that make it, the first in time before the others."""
        return {result: free.places for result, free in self.free.items()}

    @property
    def of_equation(self) -> dict[int, Place]:
        """The place of each costly equation."""
        return {position: place for free in self.free.values() for position in free.costly for place in free.places}

    def _free_result(self, result: int, atom: Any) -> _FreeResult | None:
        assert self.loop.places is not None
        carried = self.loop.reductions[result].carried
        if not is_var(atom) or (atom in self.definition and self.loop.places[self.definition[atom]] is not None):
            return None
        needed = recomputed_for(self.body.eqns, self.loop, self.definition, [atom])
        used = {atom, *(var for position in needed for var in variables(self.body.eqns[position].invars))}
        costly = self.costly & needed
        if carried is None and not costly and used.isdisjoint(self.inputs):
            return None
        is_large = carried is None or size_bytes(atom.aval) > operations.SMALL_BYTES
        return _FreeResult(
            carried=carried,
            operands=frozenset(used.intersection(self.body.invars)),
            costly=costly,
            is_single=is_large or bool(costly),
        )

    def _direct_uses(self) -> dict[Place, tuple[Var, ...]]:
        """The inputs that each place uses but for free results."""
        others = [result for result in range(len(self.body.outvars)) if result not in self.free]
        body = make_jaxpr(self.body.invars, self.body.eqns, [self.body.outvars[result] for result in others])
        places = tuple(self.loop.result_places[result] for result in others)
        return body_uses(body, replace(self.loop, result_places=places)).inputs

    def _readers_of(self, var: Var) -> set[Place]:
        return {place for place, inputs in self.uses.items() if var in inputs}

    def _find_readers(self) -> None:
        for result, free in self.free.items():
            if free.carried is None:
                free.readers.add(self._latest_writer(free) or self.loop.result_places[result])
            else:
                free.readers.update(self._readers_of(self.inputs[free.carried]))
        self._follow_updates()
        for free in self.free.values():
            if not free.readers:
                free.readers.add(self._latest_writer(free) or self._largest_operand(free))
        self._follow_updates()

    def _follow_updates(self) -> None:
        """Adds to the readers of a value the places of those that are made of it; who shares costly work has one place.

        Readers are only ever added, so it ends.
        """
        changed = True
        while changed:
            before = sum(len(free.readers) for free in self.free.values())
            for free in self.free.values():
                for other in self.free.values():
                    if other.carried is not None and self.inputs[other.carried] in free.operands:
                        other.readers.update(free.places)
                    if not free.costly.isdisjoint(other.costly):
                        other.readers.update(free.readers)
            changed = sum(len(free.readers) for free in self.free.values()) > before

    def _latest_writer(self, free: _FreeResult) -> Place | None:
        """The last in time of the places that make the carried values of which a result is made, directly or not."""
        return max(self._writers(free), key=_time, default=None)

    def _writers(self, free: _FreeResult) -> Iterator[Place]:
        result_of = {r.carried: result for result, r in enumerate(self.loop.reductions) if r.carried is not None}
        waiting, seen = [free.operands], set[int]()
        while waiting:
            operands = waiting.pop()
            for carried, var in enumerate(self.inputs):
                if var in operands and carried not in seen:
                    seen.add(carried)
                    result = result_of[carried]
                    if result in self.free:
                        waiting.append(self.free[result].operands)
                    else:
                        yield self.loop.result_places[result]

    def _largest_operand(self, free: _FreeResult) -> Place:
        """The place that first reads the largest of the other inputs of which a result is made."""
        for var in sorted(free.operands.difference(self.inputs), key=lambda var: -size_bytes(var.aval)):
            if readers := self._readers_of(var):
                return _earliest(readers)
        return Place(stage=0, phase=Phase.FORWARD)


def _time(place: Place) -> tuple[int, int]:
    """Grows from the first place of a microbatch to the last; a backward runs from the last stage to the first."""
    return _ORDER.index(place.phase), place.stage if place.phase is Phase.FORWARD else -place.stage


def _earliest(places: Iterable[Place]) -> Place:
    return min(places, key=_time)
