"""Marks the ends of stages in a loop's body, as the user would have with `pipeline_yield`.

    b = dot a w ; c = dot b v        (stages 0 and 1)        d = dot e v ; f = dot d w
    =>
    b = dot a w ; g = pipeline_yield b ; c = dot g v         d = dot e v ; h = pipeline_yield[cotangent] d ; f = dot h w

One mark of the forward has all activations that cross into later stages; its twin in the backward has all gradients
that cross back. The pass `assign_stages` takes stages, phases and tasks from there.
"""

import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend import core

from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, make_jaxpr, new_var, rename, substitute, variables
from jaxquard.ir.open_checkpoints import is_inner_gradient
from jaxquard.pipeline.marks import Mark, MarkRole, mark_p
from jaxquard.planner.step.equation_stages import EquationStages
from jaxquard.planner.step.markers import read_mark


def insert_marks(stages: EquationStages, *, names: Sequence[str], source: str) -> Jaxpr:
    """Returns the body with marks, and without the names that stood for the user's.

    Args:
        stages: of the body's equations.
        names: of the stages.
        source: the line of the loop.
    """
    writer = _MarkWriter(stages, [Mark(name=name or None, source=source) for name in names[:-1]])
    body = stages.body.jaxpr
    equations = sort_equations([*writer.equations(), *writer.forward, *writer.backward])
    return _without_names(make_jaxpr(body.invars, equations, body.outvars))


class _MarkWriter:
    """Makes the marks, and knows under which name each stage has a value."""

    def __init__(self, stages: EquationStages, marks: Sequence[Mark]) -> None:
        self.stages = stages
        self.forward: list[Equation] = []
        self.backward: list[Equation] = []
        # For each value that crosses, what it is called behind each boundary.
        self.after: dict[Var, dict[int, Var]] = {}
        self.before: dict[Var, dict[int, Var]] = {}
        # A body of one stage may have no equations, and gets no marks.
        like: Any = next((one for one in stages.body.jaxpr.eqns if not is_inner_gradient(one)), None)
        for boundary, mark in enumerate(marks):
            values = stages.activations[boundary]
            inputs = [self.after.get(var, {}).get(boundary - 1, var) for var in values]
            self._add(values, self.after, boundary, _new_mark(mark, MarkRole.PRIMAL, inputs, like))
        for boundary, mark in reversed(list(enumerate(marks))):
            values = stages.gradients[boundary]
            inputs = [self.before.get(var, {}).get(boundary + 1, var) for var in values]
            if values:
                self._add(values, self.before, boundary, _new_mark(mark, MarkRole.COTANGENT, inputs, like))

    def _add(self, values: Sequence[Var], names: dict[Var, dict[int, Var]], boundary: int, mark: Equation) -> None:
        for var, result in zip(values, mark.outvars, strict=True):
            names.setdefault(var, {})[boundary] = result
        (self.forward if names is self.after else self.backward).append(mark)

    def equations(self) -> Iterable[Equation]:
        """Yields the equations of the body on the values of their stages."""
        for position, equation in enumerate(self.stages.body.jaxpr.eqns):
            stage = self.stages.stages[position]
            if stage is None:
                yield equation
                continue
            is_backward, is_merging = position in self.stages.backward, position in self.stages.merging
            renamed = {var: self._at(var, stage, is_backward, is_merging) for var in variables(equation.invars)}
            yield rename(equation, renamed)

    def _at(self, var: Var, stage: int, is_backward: bool, is_merging: bool) -> Var:
        if is_backward and not is_merging and stage in self.before.get(var, {}):
            return self.before[var][stage]
        passed = [boundary for boundary in self.after.get(var, {}) if boundary < stage]
        return self.after[var][max(passed)] if passed else var


def _new_mark(mark: Mark, role: MarkRole, inputs: Sequence[Var], like: Equation) -> Equation:
    build: Any = core.new_jaxpr_eqn
    outputs = [new_var(var) for var in inputs]
    params = {"mark": mark, "role": role}
    return build(list(inputs), outputs, mark_p, params, frozenset(), like.source_info, like.ctx)


def sort_equations(equations: Sequence[Equation]) -> list[Equation]:
    """Returns the equations so that operands come before their users, and else as they are; marks keep their order."""
    made_by = {var: number for number, equation in enumerate(equations) for var in equation.outvars}
    needs: list[set[int]] = [
        {made_by[var] for var in variables(equation.invars) if var in made_by} for equation in equations
    ]
    marks = [n for n, equation in enumerate(equations) if _is_forward_mark(equation)]
    for earlier, later in itertools.pairwise(marks):
        needs[later].add(earlier)
    keys = _keys(equations, needs)
    waiting_for: dict[int, list[int]] = {}
    for number, needed in enumerate(needs):
        for other in needed:
            waiting_for.setdefault(other, []).append(number)
    left = [len(needed) for needed in needs]
    ready = [(keys[number], number) for number, count in enumerate(left) if not count]
    heapq.heapify(ready)
    found: list[Equation] = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(equations[number])
        for other in waiting_for.get(number, ()):
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, (keys[other], other))
    assert len(found) == len(equations), "stages run in order"
    return found


def _keys(equations: Sequence[Equation], needs: Sequence[set[int]]) -> list[float]:
    """Returns sort keys: an equation's place, and for a mark that of the last thing it needs."""
    keys = [float(number) for number in range(len(equations))]
    for number, equation in enumerate(equations):
        if equation.primitive is mark_p:
            keys[number] = max((keys[other] for other in needs[number]), default=0.0) + 0.5
    return keys


def _is_forward_mark(equation: Equation) -> bool:
    return equation.primitive is mark_p and equation.params["role"] is MarkRole.PRIMAL


def _without_names(jaxpr: Jaxpr) -> Jaxpr:
    renamed: dict[Var, Any] = {}
    kept: list[Equation] = []
    for equation in jaxpr.eqns:
        moved = rename(equation, renamed)
        if read_mark(equation) is None:
            kept.append(moved)
        else:
            renamed[equation.outvars[0]] = moved.invars[0]
    return make_jaxpr(jaxpr.invars, kept, [substitute(atom, renamed) for atom in jaxpr.outvars])
