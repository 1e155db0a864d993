"""The stage of every equation of a loop's body, by the segments that own them and by the user's marks.

An equation belongs to the stage of its block. Data flows through stages in order, so where an owner says otherwise the
equation moves: in the forward to the latest stage of its operands, in the backward, which runs from the last stage to
the first, to the earliest. A stage that begins at a mark of the user's begins exactly there.

What every task computes for itself, and what is the same for all microbatches, has no stage. Nor are sums of gradients
that leave the loop held to an order: each stage sums its own share.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from jaxquard.ir.jaxpr_tools import Jaxpr, Var, definitions, make_jaxpr, prune, users, variables
from jaxquard.pipeline.loop import Loop
from jaxquard.pipeline.marks import MarkRole
from jaxquard.pipeline.passes.assign_stages import find_backward, find_merging, find_recomputed
from jaxquard.planner.step.markers import accumulated_p, read_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBody:
    """The part of a step on one microbatch that runs for every one.

    Attributes:
        jaxpr: its inputs are those of the step; its outputs are what `accumulated` was applied to.
        results: what `accumulated` makes of each output.
        microbatch: the inputs that differ between microbatches.
    """

    jaxpr: Jaxpr = field(repr=False)
    results: tuple[Var, ...]
    microbatch: frozenset[Var]


def find_body(jaxpr: Jaxpr, *, results: Sequence[Var], microbatch: Collection[Var]) -> LoopBody:
    """Finds the body of the loop in a step on one microbatch."""
    operand = {
        equation.outvars[0]: equation.invars[0] for equation in jaxpr.eqns if equation.primitive is accumulated_p
    }
    late = set(results)
    before = []
    for equation in jaxpr.eqns:
        if late.isdisjoint(variables(equation.invars)) and late.isdisjoint(equation.outvars):
            before.append(equation)
        else:
            late.update(equation.outvars)
    body = prune(make_jaxpr(jaxpr.invars, before, [operand[result] for result in results]))
    return LoopBody(jaxpr=body, results=tuple(results), microbatch=frozenset(microbatch))


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationStages:
    """The stages of the equations of a body.

    Attributes:
        stages: for each equation; None for one without.
        backward: the positions of the equations of the backward.
        merging: the positions of sums of gradients that each stage does for itself.
        activations: for each boundary between stages, the values of the forward that cross it.
        gradients: the same for those of the backward, which cross back.
    """

    body: LoopBody = field(repr=False)
    stages: tuple[int | None, ...]
    backward: frozenset[int] = field(repr=False)
    merging: frozenset[int] = field(repr=False)
    activations: tuple[tuple[Var, ...], ...] = field(repr=False)
    gradients: tuple[tuple[Var, ...], ...] = field(repr=False)


def _find_crossings(
    body: LoopBody,
    stages: Sequence[int | None],
    positions: Collection[int],
    merging: Collection[int],
    *,
    num_stages: int,
) -> tuple[tuple[Var, ...], ...]:
    """Returns for each boundary the values of some equations that others of them use on its other side."""
    of_var = users(body.jaxpr.eqns)
    found: list[list[Var]] = [[] for _ in range(num_stages - 1)]
    for position in sorted(positions):
        stage = stages[position]
        for var in body.jaxpr.eqns[position].outvars if stage is not None else ():
            users_here = (user for user in of_var.get(var, ()) if user in positions and user not in merging)
            used = [used for user in users_here if (used := stages[user]) is not None]
            assert stage is not None
            for boundary in range(min([stage, *used]), max([stage, *used])):
                found[boundary].append(var)
    return tuple(map(tuple, found))


def stage_equations(
    body: LoopBody, *, loop: Loop, owner_stages: Mapping[Var, int], marks: Mapping[int, int], num_stages: int
) -> EquationStages:
    """Gives the equations of a body their stages.

    Args:
        loop: its reductions are those of the body's outputs.
        owner_stages: for results of equations, the stage of the block that owns them; others follow their operands.
        marks: for marks of the user's, by number, the stage that ends at each.
        num_stages: of the plan.
    """
    equations = body.jaxpr.eqns
    recomputed = find_recomputed(body.jaxpr)
    varying = _varying(body)
    backward = find_backward(equations)
    placed = [
        position
        for position, equation in enumerate(equations)
        if position not in recomputed and not varying.isdisjoint(equation.outvars)
    ]
    stages: list[int | None] = [None] * len(equations)
    owners = [owner_stages.get(equation.outvars[0]) if equation.outvars else None for equation in equations]
    found = _Stages(body, owners, marks, num_stages=num_stages)
    found.fill(stages, [position for position in placed if position not in backward])
    found.fill_backward(stages, [position for position in placed if position in backward])
    merging = find_merging(body.jaxpr, loop)
    forward = set(range(len(equations))) - backward
    return EquationStages(
        body=body,
        stages=tuple(stages),
        backward=frozenset(backward),
        merging=frozenset(merging),
        activations=_find_crossings(body, stages, forward, merging, num_stages=num_stages),
        gradients=_find_crossings(body, stages, backward, merging, num_stages=num_stages),
    )


def _varying(body: LoopBody) -> set[Var]:
    """Returns the values that differ between microbatches, and what an equation with an effect makes."""
    found = set(body.microbatch)
    for equation in body.jaxpr.eqns:
        if equation.effects or not found.isdisjoint(variables(equation.invars)):
            found.update(equation.outvars)
    return found


class _Stages:
    """Fills in the stages of equations, in order; `owners` has what is known before."""

    def __init__(
        self, body: LoopBody, owners: Sequence[int | None], marks: Mapping[int, int], *, num_stages: int
    ) -> None:
        self.equations = body.jaxpr.eqns
        self.owners, self.last = owners, num_stages - 1
        self.definition = definitions(self.equations)
        self.ends: dict[int, tuple[int, MarkRole]] = {}
        for position, equation in enumerate(self.equations):
            mark = read_mark(equation)
            if mark is not None and mark[0] in marks:
                self.ends[position] = marks[mark[0]], mark[1]

    def fill(self, stages: list[int | None], positions: Sequence[int]) -> None:
        limits = self._limits(positions, MarkRole.PRIMAL)
        for position in positions:
            before = self._operand_stages(stages, position, MarkRole.PRIMAL)
            stage = max([self.owners[position] or 0, *before])
            stages[position] = min(stage, limits.get(position, self.last))

    def fill_backward(self, stages: list[int | None], positions: Sequence[int]) -> None:
        limits = self._limits(positions, MarkRole.COTANGENT)
        inside = set(positions)
        for position in positions:
            before = self._operand_stages(stages, position, MarkRole.COTANGENT, inside)
            owner = self.owners[position]
            stage = min([self.last if owner is None else owner, *before])
            stages[position] = max(stage, limits.get(position, 0))

    def _operand_stages(
        self, stages: Sequence[int | None], position: int, role: MarkRole, inside: Collection[int] | None = None
    ) -> list[int]:
        """Returns the stages in which the operands are at hand; behind a mark, the next."""
        found: list[int] = []
        for var in variables(self.equations[position].invars):
            source = self.definition.get(var)
            if source is None or (inside is not None and source not in inside):
                continue
            stage, end = stages[source], self.ends.get(source)
            if end is not None and end[1] is role:
                stage = end[0] + 1 if role is MarkRole.PRIMAL else end[0]
            if stage is not None:
                found.append(stage)
        return found

    def _limits(self, positions: Sequence[int], role: MarkRole) -> dict[int, int]:
        """Returns for what a mark needs the stage that ends there: the last for it, in the backward the first."""
        is_forward = role is MarkRole.PRIMAL
        inside = set(positions)
        limits: dict[int, int] = {}
        for position in reversed(positions):
            end = self.ends.get(position)
            if end is not None and end[1] is role:
                limit = end[0] if is_forward else end[0] + 1
                limits[position] = (min if is_forward else max)(limit, limits.get(position, limit))
            if position not in limits:
                continue
            for var in variables(self.equations[position].invars):
                source = self.definition.get(var)
                if source is not None and source in inside:
                    limit = limits[position]
                    limits[source] = (min if is_forward else max)(limit, limits.get(source, limit))
        return limits
