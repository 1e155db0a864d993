"""Decides which actors run the equations before, between and after the loops (JaxPP, section 3.3).

The loops say where their inputs are used and where their results are. From there:

- An argument that a step returns updated (state) has one owner: the first actor, in the order of
  stages, that uses it, or else the actor of what it is combined with. Other actors get it by a
  transfer, once per step.
- An operation runs where its largest operand is, so that only small values cross. Small values
  from several actors meet on one of them, in one hop there and one back (a global norm).
- What costs little and depends only on values that every actor can have (the batch, small state
  such as a step count) runs on every actor that needs it, and nothing crosses.

Every operation then gets a region (before loop 0, between loops 0 and 1, ...) as late as its
users allow, so that nothing is kept alive through a loop in vain, and within the region a round:
operations of one actor and round form one task, and values cross only between rounds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.ir.jaxpr_tools import Equation, Var, is_var, size_bytes, variables
from jaxquard.ir.operations import SMALL_BYTES, is_light
from jaxquard.ir.step import Step
from jaxquard.pipeline.body_uses import body_uses, find_carry_uses
from jaxquard.pipeline.loop import Loop, loop_p
from jaxquard.pipeline.tasks.rounds import Rounds, find_regions

_HUB = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlacement:
    """The actors of everything outside the loops.

    Attributes:
        input_actors: for each input of the step's jaxpr, the actors that hold it when a step starts.
        equation_actors: for each equation, the actors that run it; empty for a loop.
        rounds: for each equation, its round on each of those actors.
        regions: for each equation, its region; loop k stands between regions k and k+1.
        result_actors: for each output of the jaxpr, the actors that hold it when a step ends.
    """

    input_actors: tuple[tuple[int, ...], ...]
    equation_actors: tuple[tuple[int, ...], ...]
    rounds: tuple[dict[int, int], ...]
    regions: tuple[int, ...]
    result_actors: tuple[tuple[int, ...], ...]


def place_equations(step: Step, *, result_of_input: Sequence[int | None]) -> StepPlacement:
    """Places the equations of a step whose loops are staged and whose sums are commuted.

    Args:
        step: the step.
        result_of_input: for each input of the jaxpr, the output that takes its place in the next
            step, if any: state, as opposed to data and constants.
    """
    placer = _Placer(step, result_of_input)
    placer.find_everywhere()
    placer.find_owners()
    placer.find_demands()
    regions = find_regions(step.jaxpr.eqns, variables(step.jaxpr.outvars))
    actors = [tuple(sorted(placer.actors(position))) for position in range(len(step.jaxpr.eqns))]
    return StepPlacement(
        input_actors=tuple(placer.input_actors(var) for var in step.jaxpr.invars),
        equation_actors=tuple(actors),
        rounds=tuple(Rounds(step.jaxpr.eqns, actors, regions).late()),
        regions=tuple(regions),
        result_actors=tuple(placer.result_actors(position) for position in range(len(step.jaxpr.outvars))),
    )


def loop_input_stages(equation: Equation) -> list[list[int]]:
    """For each input of a loop, the stages that use it, in order."""
    body, loop = equation.params["body"].jaxpr, equation.params["loop"]
    stages: dict[Var, set[int]] = {}
    for place, inputs in body_uses(body, loop).inputs.items():
        for var in inputs:
            stages.setdefault(var, set()).add(place.stage)
    # Other readers of a carried value get it from the stage that carries it.
    carriers: dict[Var, set[int]] = {}
    for use in find_carry_uses(equation):
        carriers.setdefault(use.var, set()).add(use.writer.stage)
    stages.update(carriers)
    return [sorted(stages.get(var, ())) for var in body.invars]


def loop_result_actors(loop: Loop) -> list[int]:
    """For each result of a loop, the actor that accumulates it."""
    actors = dict(zip(loop.targets, loop.result_places, strict=True))
    return [loop.schedule.actor_of(actors[target].stage) for target in range(len(loop.reductions))]


class _Placer:
    def __init__(self, step: Step, result_of_input: Sequence[int | None]) -> None:
        self.jaxpr = step.jaxpr
        self.equations = step.jaxpr.eqns
        self.result_of_input = dict(zip(step.jaxpr.invars, result_of_input, strict=True))
        self.everywhere: set[Var] = set()
        self.owner: dict[Var, int] = {}
        self.demand: dict[Var, dict[int, None]] = {}
        self.loop_stages = {
            position: loop_input_stages(equation)
            for position, equation in enumerate(self.equations)
            if equation.primitive is loop_p
        }

    def find_everywhere(self) -> None:
        """Finds the values that any actor can have without a transfer."""
        inputs = {
            var for var, result in self.result_of_input.items() if result is None or size_bytes(var.aval) <= SMALL_BYTES
        }
        while True:
            self.everywhere = set(inputs)
            for equation in self.equations:
                if self._can_be_everywhere(equation):
                    self.everywhere.update(equation.outvars)
            lost = {
                var
                for var in inputs
                if (result := self.result_of_input[var]) is not None
                and is_var(self.jaxpr.outvars[result])
                and self.jaxpr.outvars[result] not in self.everywhere
            }
            if not lost:
                return
            inputs -= lost

    def _can_be_everywhere(self, equation: Equation) -> bool:
        if equation.primitive is loop_p or equation.effects or not is_light(equation):
            return False
        return self.everywhere.issuperset(variables(equation.invars))

    def find_owners(self) -> None:
        """Finds one owner, an actor, for every value that is not everywhere."""
        self._place_loop_results()
        for var, actor in self._hints().items():
            if var in self.result_of_input and var not in self.everywhere:
                self.owner[var] = actor
        before = -1
        while before != len(self.owner):
            before = len(self.owner)
            for equation in self.equations:
                self._place_by_operands(equation)
            for equation in reversed(self.equations):
                self._place_by_users(equation)
        self._place_the_rest()

    def _place_the_rest(self) -> None:
        """Places values that nothing ties to an actor: with the first operand that has one, or on the hub."""
        for equation in self.equations:
            if self._movable(equation):
                owners = [self.owner[var] for var in variables(equation.invars) if var in self.owner]
                self._set_owner(equation, owners[0] if owners else _HUB)
                self._place_by_users(equation)
        for var in self.jaxpr.invars:
            if var not in self.everywhere:
                self.owner.setdefault(var, _HUB)

    def _place_loop_results(self) -> None:
        for position in self.loop_stages:
            equation = self.equations[position]
            actors = loop_result_actors(equation.params["loop"])
            self.owner.update(zip(equation.outvars, actors, strict=True))

    def _hints(self) -> dict[Var, int]:
        """Returns, for each value that a loop needs, directly or through operations before it, its first actor."""
        first: dict[Var, tuple[int, int, int]] = {}

        def learn(atom: Any, use: tuple[int, int, int]) -> None:
            if is_var(atom):
                first[atom] = min(first.get(atom, use), use)

        for position, equation in reversed(list(enumerate(self.equations))):
            if position in self.loop_stages:
                actor_of = equation.params["loop"].schedule.actor_of
                for atom, stages in zip(equation.invars, self.loop_stages[position], strict=True):
                    if stages:
                        learn(atom, (position, stages[0], actor_of(stages[0])))
                continue
            uses = [first[var] for var in equation.outvars if var in first]
            for var in variables(equation.invars) if uses else ():
                learn(var, min(uses))
        return {var: actor for var, (_, _, actor) in first.items()}

    def _movable(self, equation: Equation) -> bool:
        return equation.primitive is not loop_p and not self.everywhere.issuperset(equation.outvars)

    def _place_by_operands(self, equation: Equation) -> None:
        if not self._movable(equation) or all(var in self.owner for var in equation.outvars):
            return
        owned = [var for var in variables(equation.invars) if var in self.owner]
        if not owned:
            return
        largest = max(owned, key=lambda var: size_bytes(var.aval))
        owners = {self.owner[var] for var in owned}
        meets = len(owners) > 1 and all(not var.aval.shape for var in (*owned, *equation.outvars))
        unknown = [var for var in variables(equation.invars) if var not in self.owner and var not in self.everywhere]
        if unknown and size_bytes(largest.aval) < max(size_bytes(var.aval) for var in unknown):
            return
        self._set_owner(equation, _HUB if meets else self.owner[largest])

    def _place_by_users(self, equation: Equation) -> None:
        """Gives values without an owner the owner of the values that they are combined with."""
        if equation.primitive is loop_p or not any(var in self.owner for var in equation.outvars):
            return
        actor = next(self.owner[var] for var in equation.outvars if var in self.owner)
        for var in variables(equation.invars):
            if var not in self.everywhere:
                self.owner.setdefault(var, actor)

    def _set_owner(self, equation: Equation, actor: int) -> None:
        for var in equation.outvars:
            self.owner.setdefault(var, actor)

    def find_demands(self) -> None:
        """Finds the actors that need each value; state that is everywhere comes back where it was."""
        for _ in range(2):
            demand: dict[Var, dict[int, None]] = {}
            for position, atom in enumerate(self.jaxpr.outvars):
                if is_var(atom):
                    demand.setdefault(atom, {}).update(dict.fromkeys(self.result_actors(position)))
            for position, equation in reversed(list(enumerate(self.equations))):
                for atom, actors in self._needs(position, equation, demand):
                    if is_var(atom):
                        demand.setdefault(atom, {}).update(dict.fromkeys(actors))
            self.demand = demand

    def _needs(
        self, position: int, equation: Equation, demand: dict[Var, dict[int, None]]
    ) -> Iterator[tuple[Any, Sequence[int]]]:
        if position in self.loop_stages:
            actor_of = equation.params["loop"].schedule.actor_of
            for atom, stages in zip(equation.invars, self.loop_stages[position], strict=True):
                yield atom, [actor_of(stage) for stage in stages]
            return
        actors = self._run_on(equation, demand)
        for atom in equation.invars:
            yield atom, actors

    def _run_on(self, equation: Equation, demand: dict[Var, dict[int, None]]) -> list[int]:
        if equation.outvars and self.everywhere.issuperset(equation.outvars):
            return list(dict.fromkeys(actor for var in equation.outvars for actor in demand.get(var, {})))
        owned = (*equation.outvars, *variables(equation.invars))
        return [next((self.owner[var] for var in owned if var in self.owner), _HUB)]

    def actors(self, position: int) -> list[int]:
        equation = self.equations[position]
        return [] if equation.primitive is loop_p else self._run_on(equation, self.demand)

    def input_actors(self, var: Var) -> tuple[int, ...]:
        demanded = tuple(sorted(self.demand.get(var, ())))
        if var in self.everywhere:
            return demanded
        return (self.owner[var],)

    def result_actors(self, position: int) -> tuple[int, ...]:
        atom = self.jaxpr.outvars[position]
        if is_var(atom) and atom not in self.everywhere:
            return (self.owner.get(atom, _HUB),)
        partners = [var for var, result in self.result_of_input.items() if result == position]
        held = tuple(sorted(self.demand.get(partners[0], ()))) if partners else ()
        return held or (_HUB,)
