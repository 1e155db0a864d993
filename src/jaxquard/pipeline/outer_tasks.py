"""Tasks of what stands before, between and after the loops: one for each actor and round."""

from collections.abc import Iterator

from jaxquard.ir.jaxpr_tools import Var, make_jaxpr, variables
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.place_equations import Placement
from jaxquard.pipeline.task_code import Job, Outer, TaskCode


class OuterTasks:
    """Tasks of what stands outside the loops."""

    def __init__(self, step: Step, placement: Placement) -> None:
        self.equations = step.jaxpr.eqns
        self.placement = placement
        self.held: dict[Var, set[int]] = {}
        for atom, actors in zip(step.jaxpr.outvars, placement.result_actors, strict=True):
            self.held.setdefault(atom, set()).update(actors)
        self.num_loops = max(placement.segments, default=0)
        self.users: dict[Var, list[int]] = {}
        for position, equation in enumerate(self.equations):
            for var in variables(equation.invars):
                self.users.setdefault(var, []).append(position)

    def jobs(self, segment: int, actor: int) -> Iterator[Job]:
        rounds: dict[int, list[int]] = {}
        for position, found in enumerate(self.placement.rounds):
            if self.placement.segments[position] == segment and actor in found:
                rounds.setdefault(found[actor], []).append(position)
        for round_, positions in sorted(rounds.items()):
            when = "after" if segment == self.num_loops and segment else "before"
            name = f"{when}.{segment}.{round_}" if segment not in (0, self.num_loops) else f"{when}.{round_}"
            code = self._code(name, positions, actor)
            if code.outputs or any(self.equations[position].effects for position in positions):
                yield Job(task=name, code=code)

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
        """Whether a use is by another task that has not made the value for itself."""
        if self.equations[user].primitive is loop_p:
            return True
        makers = self.placement.equation_actors[maker]
        return any(
            user not in here if runner == actor else runner not in makers
            for runner in self.placement.equation_actors[user]
        )
