"""Numbers the boundaries between stages: which mark ends which stage.

    b = pipeline_yield[h] a ; d = pipeline_yield[h] c        (c does not need b)
    =>
    both end stage 0

Marks of one name are one boundary where none of them needs the other: two calls of one encoder, say. Where one needs
the other, as in a loop over layers, each is a boundary of its own, and the first of one call is that of another call
too. A mark without a name is a boundary of its own, and so is the end of a `task`.

Boundaries are numbered by data dependence, and else in the order of the code. Calls that pass the same two boundaries
in contradicting orders are refused.

The twin of a mark in the backward ends a stage as well. Gradients inside the loss (a gradient penalty) pass marks too;
they are part of the forward, since the loss needs them, and end no stage.
"""

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence

from jaxquard.errors import MarkError
from jaxquard.ir.jaxpr_tools import Equation, Var, variables
from jaxquard.ir.open_checkpoints import is_inner_gradient
from jaxquard.pipeline.marks import Mark, MarkRole, mark_p

# A boundary: the name and the number of marks of that name before it, or the position of a mark without a name.
_Boundary = tuple[str, int] | int


def number_marks(equations: Sequence[Equation]) -> tuple[dict[int, int], dict[int, int]]:
    """Returns the stage of each forward mark, by its position, and of the forward mark whose twin a backward one is.

    A mark in a jitted function that is called twice stands here twice, under one `Mark`; its
    twins come in the opposite order.

    Raises:
        MarkError: if calls pass two boundaries in contradicting orders.
    """
    positions = [position for position, equation in enumerate(equations) if is_forward_mark(equation)]
    if positions and equations[positions[-1]].params["mark"].ends_task:
        positions.pop()
    before = _marks_before(equations, positions)
    boundaries = _find_boundaries(equations, before)
    numbers = _order(equations, boundaries, before)
    forward = {position: numbers[boundaries[position]] for position in positions}
    return forward, _number_twins(equations, forward)


def is_forward_mark(equation: Equation) -> bool:
    """Returns True for a mark of the forward, which ends a stage."""
    return equation.primitive is mark_p and equation.params["role"] is MarkRole.PRIMAL


def is_twin(equation: Equation) -> bool:
    """Returns True for a mark of the backward that ends a stage there."""
    is_cotangent = equation.primitive is mark_p and equation.params["role"] is MarkRole.COTANGENT
    return is_cotangent and not is_inner_gradient(equation)


def _marks_before(equations: Sequence[Equation], positions: Sequence[int]) -> dict[int, frozenset[int]]:
    """Returns for each mark the marks that it needs, with no other between."""
    marks = set(positions)
    reached: dict[Var, frozenset[int]] = {}
    found: dict[int, frozenset[int]] = {}
    for position, equation in enumerate(equations):
        needed = frozenset[int]().union(*(reached.get(var, ()) for var in variables(equation.invars)))
        if position in marks:
            found[position] = needed
            needed = frozenset([position])
        if needed:
            reached.update(dict.fromkeys(equation.outvars, needed))
    return found


def _find_boundaries(equations: Sequence[Equation], before: Mapping[int, frozenset[int]]) -> dict[int, _Boundary]:
    """Returns the boundary of each mark."""
    # For each mark, how many marks of each name the longest chain through it has.
    counts: dict[int, dict[str, int]] = {}
    boundaries: dict[int, _Boundary] = {}
    for position, needed in before.items():
        mark: Mark = equations[position].params["mark"]
        counts[position] = {}
        for earlier in needed:
            for name, count in counts[earlier].items():
                counts[position][name] = max(count, counts[position].get(name, 0))
        if mark.name is None or mark.ends_task:
            boundaries[position] = position
            continue
        number = counts[position].get(mark.name, 0)
        boundaries[position] = mark.name, number
        counts[position][mark.name] = number + 1
    return boundaries


def _order(
    equations: Sequence[Equation], boundaries: Mapping[int, _Boundary], before: Mapping[int, frozenset[int]]
) -> dict[_Boundary, int]:
    """Returns the numbers of the boundaries: each after those that it needs, and else in the order of the code."""
    first = {boundary: position for position, boundary in reversed(list(boundaries.items()))}
    needs: dict[_Boundary, set[_Boundary]] = {boundary: set() for boundary in first}
    for position, needed in before.items():
        needs[boundaries[position]].update(boundaries[earlier] for earlier in needed)
    numbers: dict[_Boundary, int] = {}
    ready = [(first[boundary], boundary) for boundary, needed in needs.items() if not needed]
    heapq.heapify(ready)
    while ready:
        _, boundary = heapq.heappop(ready)
        numbers[boundary] = len(numbers)
        for other, needed in needs.items():
            if boundary in needed:
                needed.remove(boundary)
                if not needed:
                    heapq.heappush(ready, (first[other], other))
    if len(numbers) < len(first):
        raise MarkError(_explain_cycle(equations, boundaries, before, numbers))
    return numbers


def _explain_cycle(
    equations: Sequence[Equation],
    boundaries: Mapping[int, _Boundary],
    before: Mapping[int, frozenset[int]],
    numbers: Mapping[_Boundary, int],
) -> str:
    """Returns the message about boundaries that each need the other; `numbers` has those that can be ordered."""
    why = {
        (boundaries[earlier], boundaries[position]): (earlier, position)
        for position, needed in before.items()
        for earlier in needed
        if boundaries[earlier] not in numbers and boundaries[position] not in numbers
    }
    places = [
        f"{_describe(equations[earlier])} comes before {_describe(equations[position])}"
        for earlier, position in (why[edge] for edge in _find_cycle(why))
    ]
    return (
        f"the marks contradict each other: {', but '.join(places)}. Marks of one name are one boundary, so every call "
        "must pass them in the same order. Give different names to different boundaries."
    )


def _find_cycle(edges: Mapping[tuple[_Boundary, _Boundary], object]) -> Iterator[tuple[_Boundary, _Boundary]]:
    """Yields the edges of a cycle, from what every boundary here has: one before it."""
    previous = {after: earlier for earlier, after in edges}
    at = next(iter(edges))[0]
    seen: list[_Boundary] = []
    while at not in seen:
        seen.append(at)
        at = previous[at]
    cycle = [*seen[seen.index(at) :], at]
    yield from itertools.pairwise(reversed(cycle))


def _describe(equation: Equation) -> str:
    mark: Mark = equation.params["mark"]
    return f"{mark.name!r} ({mark.source})" if mark.name else f"the mark at {mark.source}"


def _number_twins(equations: Sequence[Equation], forward: Mapping[int, int]) -> dict[int, int]:
    stages: dict[Mark, list[int]] = {}
    for position, stage in forward.items():
        stages.setdefault(equations[position].params["mark"], []).append(stage)
    seen: dict[Mark, int] = {}
    twins: dict[int, int] = {}
    for position, equation in enumerate(equations):
        if is_twin(equation) and equation.params["mark"] in stages:
            mark: Mark = equation.params["mark"]
            seen[mark] = seen.get(mark, -1) + 1
            twins[position] = stages[mark][-1 - seen[mark] % len(stages[mark])]
    return twins
