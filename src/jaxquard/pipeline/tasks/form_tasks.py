"""Turns places and rounds into tasks: pieces of code with inputs and outputs.

    0F: c = dot a w ; d = tanh c        (a: a batch leaf, w: a constant of the loop)
    =>
    stage0_F(w, leaf, index) -> (d) { a = leaf[index] ; c = dot a w ; d = tanh c }

A task of a loop takes whole batch leaves and the number of the microbatch, and slices its microbatch
itself: the host slices and moves nothing. Reductions are part of the task that computes the
last term: the accumulator goes in and comes out. Phases that the schedule runs back to back on
one microbatch are one task, where no other task stands between them. Outside the loops, actors share equal parts of
their tasks (`share_parts`).
"""

from collections.abc import Iterator

from jaxquard.ir.jaxpr_tools import Var, make_jaxpr, variables
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.tasks.loop_tasks import LoopTasks
from jaxquard.pipeline.tasks.place_equations import StepPlacement
from jaxquard.pipeline.tasks.share_parts import share_parts
from jaxquard.pipeline.tasks.task_code import ActorTask, Outer, TaskCode, TaskRows


def form_tasks(step: Step, *, placement: StepPlacement, num_actors: int) -> TaskRows:
    """Returns the tasks of each actor, in order."""
    rows: list[list[ActorTask]] = [[] for _ in range(num_actors)]
    loops = [equation for equation in step.jaxpr.eqns if equation.primitive is loop_p]
    outside = _OutsideTasks(step, placement)
    for region in range(len(loops) + 1):
        for actor, row in enumerate(share_parts([list(outside.tasks(region, actor)) for actor in range(num_actors)])):
            rows[actor].extend(row)
        if region < len(loops):
            for actor, row in enumerate(LoopTasks(loops[region], region).rows()):
                rows[actor].extend(row)
    return tuple(map(tuple, rows))


class _OutsideTasks:
    """Tasks of the equations before, between and after the loops: one for each actor and round."""

    def __init__(self, step: Step, placement: StepPlacement) -> None:
        self.equations = step.jaxpr.eqns
        self.placement = placement
        self.held: dict[Var, set[int]] = {}
        for atom, actors in zip(step.jaxpr.outvars, placement.result_actors, strict=True):
            self.held.setdefault(atom, set()).update(actors)
        self.num_loops = max(placement.regions, default=0)
        self.users: dict[Var, list[int]] = {}
        for position, equation in enumerate(self.equations):
            for var in variables(equation.invars):
                self.users.setdefault(var, []).append(position)

    def tasks(self, region: int, actor: int) -> Iterator[ActorTask]:
        rounds: dict[int, list[int]] = {}
        for position, found in enumerate(self.placement.rounds):
            if self.placement.regions[position] == region and actor in found:
                rounds.setdefault(found[actor], []).append(position)
        for round_, positions in sorted(rounds.items()):
            when = "after" if region == self.num_loops and region else "before"
            name = f"{when}.{region}.{round_}" if region not in (0, self.num_loops) else f"{when}.{round_}"
            code = self._code(name, positions, actor)
            if code.outputs or any(self.equations[position].effects for position in positions):
                yield ActorTask(label=name, code=code)

    def _code(self, name: str, positions: list[int], actor: int) -> TaskCode:
        equations = [self.equations[position] for position in positions]
        defined = {var for equation in equations for var in equation.outvars}
        used = dict.fromkeys(var for equation in equations for var in variables(equation.invars))
        inputs = [var for var in used if var not in defined]
        here = set(positions)
        outputs = [
            var
            for position, equation in zip(positions, equations, strict=True)
            for var in equation.outvars
            if actor in self.held.get(var, ())
            or any(self._elsewhere(user, position, here, actor) for user in self.users.get(var, ()))
        ]
        return TaskCode(
            name=name,
            jaxpr=make_jaxpr(inputs, equations, outputs),
            inputs=tuple(map(Outer, inputs)),
            outputs=tuple(map(Outer, outputs)),
        )

    def _elsewhere(self, user: int, maker: int, here: set[int], actor: int) -> bool:
        """Returns True if another task, which has not made the value for itself, uses it."""
        if self.equations[user].primitive is loop_p:
            return True
        makers = self.placement.equation_actors[maker]
        return any(
            user not in here if runner == actor else runner not in makers
            for runner in self.placement.equation_actors[user]
        )
