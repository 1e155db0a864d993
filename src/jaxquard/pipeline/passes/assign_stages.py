"""Gives each operation of a loop's body its stage and phase, by data dependence (JaxPP, 3.2, 3.3).

    c = dot a w ; d = pipeline_yield c ; e = dot d v
    =>
    0F: c = dot a w        1F: e = dot c v

Forward: an operation belongs to the first mark that needs it. What no mark needs goes with the
latest of its operands, and so what depends on the last mark is the last stage. Backward: the twin
of mark k ends the input gradient of stage k+1; what only weights need is the weight gradient of
the stage of the latest operand, the backward running from the last stage to the first.

Whether an operation is of the backward is read off JAX's own record of how it came to be
(`transpose` as the outermost differentiation of its name stack) and passed on to what depends on
it. Operations that only the backward needs and that cost little (derivatives of activations)
stay in the backward, so that their operands are kept rather than their results.

Values that every task can make for itself (slices of the batch, keys, masks) get no place. Nor does what only makes
carried values, or other outputs beside them, of inputs: `place_carries` knows who reads them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from jaxquard.errors import ScheduleError
from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    close,
    definitions,
    is_var,
    make_jaxpr,
    rename,
    substitute,
    users,
    variables,
)
from jaxquard.ir.open_checkpoints import is_transposed
from jaxquard.ir.operations import is_light, is_linear_in_first, is_recomputable, is_small_constraint, is_sum
from jaxquard.ir.step import Step
from jaxquard.ir.task import Phase
from jaxquard.pipeline.loop import Loop, Place, ReduceOp, loop_p
from jaxquard.pipeline.marks import MarkRole, mark_p
from jaxquard.pipeline.number_marks import is_forward_mark, is_twin, number_marks


def assign_stages(step: Step) -> Step:
    """Assigns the operations of every loop, and takes the marks out."""
    equations = [_assign_loop(equation) if equation.primitive is loop_p else equation for equation in step.jaxpr.eqns]
    return replace(step, jaxpr=_strip_marks(step.jaxpr, equations))


def _strip_marks(jaxpr: Jaxpr, equations: list[Equation]) -> Jaxpr:
    renamed: dict[Var, Var] = {}
    kept = []
    for equation in equations:
        moved = rename(equation, renamed)
        if equation.primitive is mark_p:
            renamed.update(zip(equation.outvars, moved.invars, strict=True))
        else:
            kept.append(moved)
    return make_jaxpr(jaxpr.invars, kept, [substitute(atom, renamed) for atom in jaxpr.outvars])


def _assign_loop(equation: Equation) -> Equation:
    loop: Loop = equation.params["loop"]
    body = equation.params["body"].jaxpr
    assigner = _Assigner(body, loop)
    assigner.assign()
    places, stripped = assigner.stripped()
    _check_phases(loop, places)
    last = Place(stage=loop.schedule.num_stages - 1, phase=Phase.FORWARD)
    defined = {var: place for inside, place in zip(stripped.eqns, places, strict=True) for var in inside.outvars}
    result_places = tuple((defined.get(atom) if is_var(atom) else None) or last for atom in stripped.outvars)
    new_loop = replace(loop, places=tuple(places), result_places=result_places, stage_names=assigner.stage_names())
    return equation.replace(params={"body": close(stripped), "loop": new_loop})


class _Assigner:
    """Assigns the equations of one body. `place[i]` is where equation i goes."""

    def __init__(self, body: Jaxpr, loop: Loop) -> None:
        self.body, self.loop = body, loop
        self.equations = body.eqns
        self.definition = definitions(body.eqns)
        self.users = users(body.eqns)
        self.place: list[Place | None] = [None] * len(body.eqns)
        self.recomputed = find_recomputed(body, num_constants=loop.num_constants)
        self.updates = _find_updates(body, self.recomputed) if loop.carry_names else set()
        self.backward = find_backward(body.eqns)
        self.forward_mark, self.backward_mark = number_marks(self.equations)
        self.mark_of_stage = {
            stage: body.eqns[position].params["mark"] for position, stage in reversed(list(self.forward_mark.items()))
        }
        self.last = len(self.mark_of_stage)
        _check_stage_count(self)

    def assign(self) -> None:
        for position, stage in sorted(self.forward_mark.items(), key=lambda item: (item[1], item[0])):
            self._take(self._operands(position), Place(stage=stage, phase=Phase.FORWARD))
        self._assign_rest_of_forward()
        for position, stage in sorted(self.backward_mark.items(), key=lambda item: (-item[1], item[0])):
            self._take(self._operands(position), Place(stage=stage + 1, phase=Phase.INPUT_GRADIENT))
        self._assign_rest_of_backward()

    def stripped(self) -> tuple[list[Place | None], Jaxpr]:
        """Returns the places of the equations without the marks, and the body without them."""
        places = [
            place
            for place, equation in zip(self.place, self.equations, strict=True)
            if equation.primitive is not mark_p
        ]
        return places, _strip_marks(self.body, self.equations)

    def stage_names(self) -> tuple[str, ...]:
        names = [self.mark_of_stage[stage].name for stage in range(self.last)]
        return tuple(name or "" for name in (*names, self._last_name()))

    def _last_name(self) -> str:
        marks = [equation.params["mark"] for equation in self.equations if is_forward_mark(equation)]
        return (marks[-1].name or "") if marks and marks[-1].ends_task else ""

    def _operands(self, position: int) -> list[Var]:
        return variables(self.equations[position].invars)

    def _take(self, atoms: Iterable[Var], place: Place) -> None:
        """Gives a place to all that the atoms need and that has none yet."""
        waiting = list(atoms)
        while waiting:
            position = self.definition.get(waiting.pop())
            if position is None or position in self.recomputed or self.place[position] is not None:
                continue
            if position in self.forward_mark or position in self.backward_mark:
                continue
            self.place[position] = place
            waiting.extend(self._operands(position))

    def _unplaced(self, *, backward: bool) -> list[int]:
        return [
            position
            for position, place in enumerate(self.place)
            if place is None
            and position not in self.recomputed
            and position not in self.updates
            and position not in self.forward_mark
            and position not in self.backward_mark
            and (position in self.backward) is backward
        ]

    def _assign_rest_of_forward(self) -> None:
        """Places what the outputs need, and all that is costly; the rest waits for the backward."""
        wanted = self._needed_forward()
        pending = []
        for position in self._unplaced(backward=False):
            if position not in wanted:
                continue
            stages = [stage for var in self._operands(position) if (stage := self._forward_stage(var)) is not None]
            if stages:
                self.place[position] = Place(stage=max(stages), phase=Phase.FORWARD)
            else:
                pending.append(position)
        for position in reversed(pending):
            if places := self._user_places(position):
                self.place[position] = Place(stage=min(place.stage for place in places), phase=Phase.FORWARD)
        for position in pending:
            # What comes of the carry alone, and is used in the backward alone, waits for it: that may update the carry.
            is_used = any(map(self.users.get, self.equations[position].outvars))
            if self.place[position] is None and not (is_used and self._is_of_carry(position)):
                stages = [stage for var in self._operands(position) if (stage := self._forward_stage(var)) is not None]
                self.place[position] = Place(stage=max(stages, default=self.last), phase=Phase.FORWARD)

    def _is_of_carry(self, position: int) -> bool:
        """Returns True if an operation needs carried values, and nothing of the microbatch."""
        inputs = self.body.invars
        carried = set(inputs[self.loop.num_constants : self.loop.first_leaf])
        needed, waiting = set[Var](), self._operands(position)
        while waiting:
            var = waiting.pop()
            if var not in needed:
                needed.add(var)
                waiting.extend(self._operands(self.definition[var]) if var in self.definition else ())
        return not needed.isdisjoint(carried) and needed.isdisjoint(inputs[self.loop.first_leaf :])

    def _needed_forward(self) -> set[int]:
        waiting = [
            position
            for position in self._unplaced(backward=False)
            if self.equations[position].effects or not is_light(self.equations[position])
        ]
        for atom in variables(self.body.outvars):
            position = self.definition.get(atom)
            if position is not None and position not in self.backward:
                waiting.append(position)
        found: set[int] = set()
        while waiting:
            position = waiting.pop()
            if position not in found:
                found.add(position)
                waiting.extend(self.definition[var] for var in self._operands(position) if var in self.definition)
        return found

    def _forward_stage(self, var: Var) -> int | None:
        """The stage in which a value can first be used."""
        position = self.definition.get(var)
        if position is None:
            return None
        if position in self.forward_mark:
            return self.forward_mark[position] + 1
        if self.equations[position].primitive is mark_p:
            return max(
                (s for v in self._operands(position) if (s := self._forward_stage(v)) is not None),
                default=None,
            )
        place = self.place[position]
        return None if place is None else place.stage

    def _assign_rest_of_backward(self) -> None:
        """Places weight gradients with the latest of their operands, recomputed values with their user."""
        recomputing = []
        for position in self._unplaced(backward=True):
            stages = [stage for var in self._operands(position) if (stage := self._backward_stage(var)) is not None]
            if stages:
                self.place[position] = Place(stage=min(stages), phase=Phase.WEIGHT_GRADIENT)
            else:
                recomputing.append(position)
        self._send_early()
        for position in reversed(recomputing):
            self.place[position] = max(
                self._user_places(position),
                key=_earliness,
                default=Place(stage=self._stage_by_residuals(position, default=self.last), phase=Phase.WEIGHT_GRADIENT),
            )
        for position in reversed(self._unplaced(backward=False)):
            places = self._user_places(position)
            self.place[position] = places[0] if len(set(places)) == 1 else self._forward_place(position)
        self._keep_order()

    def _send_early(self) -> None:
        """Makes input gradients of values that another stage's backward needs: W's may run in any order."""
        merging = find_merging(self.body, self.loop)
        for position in reversed(range(len(self.equations))):
            place = self.place[position]
            if place is None or place.phase is not Phase.WEIGHT_GRADIENT:
                continue
            users = (user for var in self.equations[position].outvars for user in self.users.get(var, ()))
            if {self.place[user] for user in users if user not in merging} - {place, None}:
                self.place[position] = replace(place, phase=Phase.INPUT_GRADIENT)

    def _keep_order(self) -> None:
        """Moves to the forward what a backward task would send to one that may run before it."""
        for position in reversed(range(len(self.equations))):
            place = self.place[position]
            if place is None or place.phase is Phase.FORWARD or position in self.backward:
                continue
            if not all(_runs_after(user, place) for user in self._user_places(position)):
                self.place[position] = self._forward_place(position)

    def _user_places(self, position: int) -> list[Place]:
        return [
            place
            for var in self.equations[position].outvars
            for user in self.users.get(var, ())
            if (place := self.place[user]) is not None
        ]

    def _forward_place(self, position: int) -> Place:
        first = min((place.stage for place in self._user_places(position)), default=self.last)
        return Place(stage=self._stage_by_residuals(position, default=first), phase=Phase.FORWARD)

    def _backward_stage(self, var: Var) -> int | None:
        position = self.definition.get(var)
        if position is None or position not in self.backward:
            return None
        if position in self.backward_mark:
            return self.backward_mark[position]
        if self.equations[position].primitive is mark_p:
            return min(
                (s for v in self._operands(position) if (s := self._backward_stage(v)) is not None),
                default=None,
            )
        place = self.place[position]
        return None if place is None else place.stage

    def _stage_by_residuals(self, position: int, *, default: int) -> int:
        stages = [s for var in self._operands(position) if (s := self._forward_stage(var)) is not None]
        return max(stages, default=default)


def find_recomputed(body: Jaxpr, *, num_constants: int = 0) -> set[int]:
    """Returns the positions of the operations that every task does for itself, on inputs of the body.

    Args:
        num_constants: inputs that are the same in every iteration. Small constraints of them that are still in the loop
            move no data, and are done so, too.
    """
    free: dict[Var, bool] = dict.fromkeys(body.invars, False)
    constants = set(body.invars[:num_constants])
    found = set()
    for position, equation in enumerate(body.eqns):
        operands = variables(equation.invars)
        if equation.primitive is mark_p or any(var not in free for var in operands):
            continue
        from_nothing = all(free[var] for var in operands)
        is_constant = constants.issuperset(operands)
        if is_recomputable(equation, from_nothing=from_nothing) or (is_constant and is_small_constraint(equation)):
            found.add(position)
            free.update(dict.fromkeys(equation.outvars, from_nothing))
            constants.update(equation.outvars if is_constant else ())
    return found


def _find_updates(body: Jaxpr, recomputed: set[int]) -> set[int]:
    """Returns the positions of costly operations on inputs alone that nothing but outputs needs."""
    of_var, definition = users(body.eqns), definitions(body.eqns)
    found: set[int] = set()
    for position, equation in enumerate(body.eqns):
        operands = {definition[var] for var in variables(equation.invars) if var in definition}
        is_own = equation.primitive is not mark_p and not equation.effects and position not in recomputed
        if is_own and found.issuperset(operands - recomputed):
            found.add(position)
    changed = True
    while changed:
        before = len(found)
        for position in sorted(found, reverse=True):
            if not found.issuperset(user for var in body.eqns[position].outvars for user in of_var.get(var, ())):
                found.remove(position)
        for position in sorted(found):
            operands = {definition[var] for var in variables(body.eqns[position].invars) if var in definition}
            if not found.issuperset(operands - recomputed):
                found.remove(position)
        changed = len(found) < before
    return found


def find_backward(equations: Sequence[Equation]) -> set[int]:
    """Returns the positions of the equations of the backward: those that JAX transposed, and what depends on them."""
    definition = definitions(equations)
    found: set[int] = set()
    for position, equation in enumerate(equations):
        role = equation.params.get("role") if equation.primitive is mark_p else None
        if role is MarkRole.PRIMAL:
            continue
        depends = any(definition.get(var) in found for var in variables(equation.invars))
        if depends or is_twin(equation) or is_transposed(equation):
            found.add(position)
    return found


def find_merging(body: Jaxpr, loop: Loop) -> set[int]:
    """Finds the sums of gradients that `commute_sums` takes out of the loop, and that so tie no tasks together."""
    summed = {
        atom
        for atom, reduction in zip(body.outvars, loop.reductions, strict=True)
        if is_var(atom) and reduction.op in (ReduceOp.SUM, ReduceOp.MEAN)
    }
    of_var = users(body.eqns)
    num_uses = Counter(var for equation in body.eqns for var in variables(equation.invars))
    num_uses.update(variables(body.outvars))
    found: set[int] = set()
    for position in reversed(range(len(body.eqns))):
        equation = body.eqns[position]
        if is_sum(equation) or is_linear_in_first(equation):
            (var,) = equation.outvars
            if num_uses[var] == 1 and (var in summed or found.issuperset(of_var.get(var, ()))):
                found.add(position)
    return found


def _earliness(place: Place) -> tuple[bool, int]:
    """Grows from the last backward place that runs to the first."""
    return place.phase is Phase.INPUT_GRADIENT, place.stage


def _runs_after(user: Place, place: Place) -> bool:
    """Returns True if every schedule runs `user` after `place` (a backward place), or they are one."""
    if place.phase is Phase.WEIGHT_GRADIENT or user.phase is Phase.FORWARD:
        return user == place
    return user.stage <= place.stage


def _check_phases(loop: Loop, places: list[Place | None]) -> None:
    """Refuses a schedule without tasks for the backward that the function has."""
    rows = loop.schedule.rows(loop.num_microbatches)
    scheduled = {(task.stage, task.phase) for row in rows for task in row}
    for place in dict.fromkeys(places):
        if place is None or (place.stage, place.phase) in scheduled:
            continue
        if place.phase is Phase.FORWARD or (place.stage, Phase.BACKWARD) not in scheduled:
            missing = "F" if place.phase is Phase.FORWARD else "B, or I and W,"
            raise ScheduleError(
                f"the function at {loop.source} has a {'forward' if missing == 'F' else 'backward'} in stage "
                f"{place.stage}, but schedule {loop.schedule!r} runs no {missing} of it. Add those tasks."
            )


def _check_stage_count(assigner: _Assigner) -> None:
    schedule, found = assigner.loop.schedule, assigner.last + 1
    if schedule.num_stages == found:
        return
    marks = [assigner.mark_of_stage[stage] for stage in range(assigner.last)]
    where = f"{len(marks)} marks, the last at {marks[-1].source}" if marks else "no mark"
    if len(marks) == 1:
        where = f"1 mark, at {marks[0].source}"
    more = "Add a `pipeline_yield`" if found < schedule.num_stages else "Take a `pipeline_yield` away"
    raise ScheduleError(
        f"schedule {schedule!r} has {schedule.num_stages} stages, but the function at {assigner.loop.source} "
        f"makes {found} ({where}). {more}, or use a schedule of {found} stages."
    )
