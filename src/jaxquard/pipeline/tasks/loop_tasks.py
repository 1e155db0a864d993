"""Tasks of a loop: one piece of code for each stage and phase, in the order of the schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.ir.jaxpr_tools import Equation, Var, definitions, is_var, variables
from jaxquard.ir.task import Phase, Task
from jaxquard.ir.typed_shardings import abstract_type
from jaxquard.pipeline.body_uses import body_uses
from jaxquard.pipeline.loop import Place, Reduction
from jaxquard.pipeline.tasks.task_code import ActorTask, Carried, Local, Outer, TaskCode, Total
from jaxquard.pipeline.tasks.write_code import CodeWriter, LoopContext


class LoopTasks:
    """Tasks of one loop."""

    def __init__(self, equation: Equation, number: int) -> None:
        self.context = LoopContext(equation, number)
        self.equation, self.number = equation, number
        self.loop, self.body = self.context.loop, self.context.body
        assert self.loop.places is not None
        self.places = self.loop.places
        self.uses = body_uses(self.body, self.loop)
        self.definition = definitions(self.body.eqns)
        self.used_by = self._used_by()
        self.codes: dict[tuple[Place, ...], TaskCode] = {}
        self.successors, self.predecessors = self._neighbours()

    def _used_by(self) -> dict[Var, set[Place]]:
        found: dict[Var, set[Place]] = {}
        for place, positions in self.uses.equations.items():
            for position in positions:
                for var in variables(self.body.eqns[position].invars):
                    found.setdefault(var, set()).add(place)
        for atom, place in zip(self.body.outvars, self.loop.result_places, strict=True):
            if is_var(atom):
                found.setdefault(atom, set()).add(place)
        return found

    def rows(self) -> Iterator[list[ActorTask]]:
        """Yields the tasks of each actor, as the schedule orders them."""
        for row in self.loop.schedule.rows(self.loop.num_microbatches):
            begun: set[Total] = set()
            tasks = [self._actor_task(fused, begun) for fused in self._fuse(row)]
            # In a loop of one microbatch, tasks make their accumulators themselves.
            started = (Carried,) if self.loop.num_microbatches == 1 else (Total, Carried)
            kept = dict.fromkeys(v for task in tasks for v in task.code.outputs if isinstance(v, started))
            tasks = self._finish(tasks)
            if kept:
                start = self._start(list(kept))
                tasks = [ActorTask(label=start.name, code=start), *tasks]
            yield tasks

    def _finish(self, tasks: list[ActorTask]) -> list[ActorTask]:
        """Notes with the last task of each accumulator and carried value which result it becomes."""
        last: dict[Total | Carried, int] = {}
        for position, task in enumerate(tasks):
            is_last = task.microbatch == self.loop.num_microbatches - 1
            for value in task.code.outputs:
                if isinstance(value, Total) or (isinstance(value, Carried) and is_last):
                    last[value] = position
        finished: dict[int, list[tuple[Total | Carried, Var]]] = {}
        for value, position in last.items():
            finished.setdefault(position, []).append((value, self.equation.outvars[value.target]))
        return [replace(task, finished=tuple(finished.get(position, ()))) for position, task in enumerate(tasks)]

    def _start(self, kept: list[Total | Carried]) -> TaskCode:
        """A task that makes the accumulators of one actor, and copies what it carries: its tasks donate both."""
        starts = [(self.loop.reductions[value.target], self.equation.outvars[value.target].aval) for value in kept]
        first = [self._first(reduction) for reduction, _ in starts]
        inputs = list(dict.fromkeys(variables(atom for atom in first if atom is not None)))

        def start(*arrays: Any) -> list[Any]:
            given = dict(zip(inputs, arrays, strict=True))
            return [
                reduction.empty(aval)
                if atom is None
                else jnp.copy(given[atom] if is_var(atom) else np.asarray(atom.val, aval.dtype))
                for (reduction, aval), atom in zip(starts, first, strict=True)
            ]

        closed = jax.make_jaxpr(start)(*(abstract_type(var.aval) for var in inputs))
        return TaskCode(
            name=f"start.{self.number}" if self.number else "start",
            jaxpr=closed.jaxpr,
            inputs=tuple(map(Outer, inputs)),
            outputs=tuple(kept),
        )

    def _first(self, reduction: Reduction) -> Any:
        """The first carried value outside the loop; None for an accumulator."""
        return None if reduction.carried is None else self.equation.invars[self.loop.num_constants + reduction.carried]

    def _actor_task(self, fused: list[Task], begun: set[Total]) -> ActorTask:
        """Returns a task, and notes the accumulators that it adds to."""
        places = tuple(place for task in fused for place in self._places(task))
        phases = "".join(task.phase.value for task in fused)
        first = fused[0]
        if places not in self.codes:
            self.codes[places] = self._code(f"{self._stage_name(first.stage)}_{phases}", places, begun)
        begun.update(value for value in self.codes[places].outputs if isinstance(value, Total))
        label = f"{first.stage}{phases}{first.microbatch}"
        return ActorTask(label=label, code=self.codes[places], microbatch=first.microbatch)

    def _stage_name(self, stage: int) -> str:
        given = self.loop.stage_names[stage] if stage < len(self.loop.stage_names) else ""
        prefix = f"loop{self.number}." if self.number else ""
        return f"{prefix}{given}" if given else f"{prefix}stage{stage}"

    def _places(self, task: Task) -> list[Place]:
        phases = [task.phase]
        if task.phase is Phase.BACKWARD:
            phases = [Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT]
        places = [Place(stage=task.stage, phase=phase) for phase in phases]
        return [place for place in places if place in self.uses.equations]

    def _fuse(self, row: Sequence[Task]) -> Iterator[list[Task]]:
        """Tasks of one stage and microbatch that follow each other, as far as they can be one."""
        group: list[Task] = []
        for task in row:
            if not self._places(task):
                continue
            same = group and (group[0].stage, group[0].microbatch) == (task.stage, task.microbatch)
            if group and not (same and self._can_fuse(group, task)):
                yield group
                group = []
            group.append(task)
        if group:
            yield group

    def _can_fuse(self, group: list[Task], task: Task) -> bool:
        first = {place for member in group for place in self._places(member)}
        second = set(self._places(task))
        for use in self.context.carry_uses:
            waits = use.writer.stage != task.stage and bool(use.readers & second)
            if waits and not use.readers & first:
                return False  # It waits for another stage, of the microbatch before; the group need not.
        between = self._reach(first, self.successors) & self._reach(second, self.predecessors)
        return not (between & self.uses.equations.keys()) - first - second

    def _edges(self) -> Iterator[tuple[Place, Place]]:
        for var, users in self.used_by.items():
            position = self.definition.get(var)
            source = None if position is None else self.places[position]
            if source is not None:
                for user in users - {source}:
                    yield source, user

    def _schedule_edges(self) -> Iterator[tuple[Place, Place]]:
        """The order that every schedule keeps; other tasks may be fused too, so it counts where no data does."""
        for stage in range(self.loop.schedule.num_stages):
            forward, of_input, of_weight = (
                Place(stage=stage, phase=phase)
                for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
            )
            yield forward, of_input
            yield of_input, of_weight
            if stage:
                yield Place(stage=stage - 1, phase=Phase.FORWARD), forward
                yield of_input, Place(stage=stage - 1, phase=Phase.INPUT_GRADIENT)

    def _neighbours(self) -> tuple[dict[Place, set[Place]], dict[Place, set[Place]]]:
        """For each place, those that come after it, and those before it."""
        successors: dict[Place, set[Place]] = {}
        predecessors: dict[Place, set[Place]] = {}
        for source, user in (*self._edges(), *self._schedule_edges()):
            successors.setdefault(source, set()).add(user)
            predecessors.setdefault(user, set()).add(source)
        return successors, predecessors

    @staticmethod
    def _reach(start: set[Place], edges: dict[Place, set[Place]]) -> set[Place]:
        found: set[Place] = set()
        waiting = [place for member in start for place in edges.get(member, ())]
        while waiting:
            place = waiting.pop()
            if place not in found:
                found.add(place)
                waiting.extend(edges.get(place, ()))
        return found

    def _code(self, name: str, places: tuple[Place, ...], begun: set[Total]) -> TaskCode:
        own = set(places)
        positions = sorted({position for place in places for position in self.uses.equations[place]})
        equations = [self.body.eqns[position] for position in positions]
        defined = {var for equation in equations for var in equation.outvars}
        terms = [
            (atom, target)
            for atom, place, target in zip(self.body.outvars, self.loop.result_places, self.loop.targets, strict=True)
            if place in own
        ]
        used = dict.fromkeys(var for equation in equations for var in variables(equation.invars))
        used.update(dict.fromkeys(variables(atom for atom, _ in terms)))
        taken = [var for var in used if var not in defined]
        writer = CodeWriter(self.context, own, begun)
        for var in taken:
            writer.take(var)
        writer.equations.extend(equations)
        crossing = [
            var
            for position in positions
            if self.places[position] in own
            for var in self.body.eqns[position].outvars
            if self.used_by.get(var, own) - own
        ]
        for var in crossing:
            writer.outputs.append((Local(self.number, var), var))
        for atom, target in terms:
            writer.accumulate(atom, target)
        return writer.code(name)
