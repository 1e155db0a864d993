"""Turns places and rounds into tasks: pieces of code with inputs and outputs.

    0F: c = dot a w ; d = tanh c        (a: a batch leaf, w: a constant of the loop)
    =>
    stage0_F(w, leaf, index) -> (d) { a = leaf[index] ; c = dot a w ; d = tanh c }

A task of a loop takes whole batch leaves and the number of the microbatch, and cuts its slice
itself: nothing is cut or moved on the host. Reductions are part of the task that computes the
last term: the accumulator goes in and comes out. Phases that the schedule runs back to back on
one microbatch are one task, where no other task stands between them.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxquard.ir.jaxpr_tools import (
    Equation,
    Var,
    definitions,
    is_var,
    make_jaxpr,
    new_var,
    prune,
    splice,
    splice_traced,
    variables,
)
from jaxquard.ir.step import Step
from jaxquard.ir.task import Phase, Task
from jaxquard.pipeline.body_uses import body_uses
from jaxquard.pipeline.loop import Loop, Place, Reduction, loop_p
from jaxquard.pipeline.place_equations import Placement
from jaxquard.pipeline.task_code import Index, Local, Outer, TaskCode, Total, Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A task on an actor, once: what a `Run` will be.

    Attributes:
        task: `0F3`, or the code's name for what stands outside a loop.
        microbatch: which microbatch, inside a loop.
        finished: accumulators that get their last term here, and the results that they become.
    """

    task: str
    code: TaskCode
    microbatch: int | None = None
    finished: tuple[tuple[Total, Var], ...] = ()


def form_tasks(step: Step, *, placement: Placement, num_actors: int) -> tuple[tuple[Job, ...], ...]:
    """The jobs of each actor, in order."""
    jobs: list[list[Job]] = [[] for _ in range(num_actors)]
    loops = [equation for equation in step.jaxpr.eqns if equation.primitive is loop_p]
    outer = _OuterTasks(step, placement)
    for segment in range(len(loops) + 1):
        for actor in range(num_actors):
            jobs[actor].extend(outer.jobs(segment, actor))
        if segment < len(loops):
            tasks = LoopTasks(loops[segment], segment)
            for actor, row in enumerate(tasks.rows()):
                jobs[actor].extend(row)
    return tuple(map(tuple, jobs))


class _OuterTasks:
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


class LoopTasks:
    """Tasks of one loop."""

    def __init__(self, equation: Equation, number: int) -> None:
        self.equation, self.number = equation, number
        self.loop: Loop = equation.params["loop"]
        self.body = equation.params["body"].jaxpr
        assert self.loop.places is not None
        self.uses = body_uses(self.body, self.loop)
        self.definition = definitions(self.body.eqns)
        self.outer = dict(zip(self.body.invars, equation.invars, strict=True))
        self.leaves = set(self.body.invars[self.loop.num_constants :])
        self.used_by = self._used_by()
        self.codes: dict[tuple[Place, ...], TaskCode] = {}
        self.additions: dict[Any, Any] = {}
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

    def trace_addition(self, reduction: Reduction, total: Any, term: Any) -> Any:
        """Adding a term to an accumulator, traced once for each pair of types."""
        types = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in (total, term)]
        key = (reduction, *((type_.shape, type_.dtype) for type_ in types))
        if key not in self.additions:
            add = functools.partial(reduction.add, num_microbatches=self.loop.num_microbatches)
            self.additions[key] = jax.make_jaxpr(lambda *arrays: [add(*arrays)])(*types, np.int32(0))
        return self.additions[key]

    def rows(self) -> Iterator[list[Job]]:
        """The jobs of each actor, as the schedule orders them."""
        for row in self.loop.schedule.rows(self.loop.num_microbatches):
            jobs = [self._job(tasks) for tasks in self._fuse(row)]
            totals = dict.fromkeys(v for job in jobs for v in job.code.outputs if isinstance(v, Total))
            if totals:
                start = self._start(list(totals))
                jobs = [Job(task=start.name, code=start), *_finish(jobs, self.equation.outvars)]
            yield jobs

    def _start(self, totals: list[Total]) -> TaskCode:
        """A task that makes the accumulators of one actor."""
        starts = [(self.loop.reductions[total.target], self.equation.outvars[total.target].aval) for total in totals]
        closed = jax.make_jaxpr(lambda: [reduction.empty(aval) for reduction, aval in starts])()
        return TaskCode(
            name=f"start.{self.number}" if self.number else "start",
            jaxpr=closed.jaxpr,
            inputs=(),
            outputs=tuple(totals),
        )

    def _job(self, tasks: list[Task]) -> Job:
        places = tuple(place for task in tasks for place in self._places(task))
        phases = "".join(task.phase.value for task in tasks)
        first = tasks[0]
        if places not in self.codes:
            self.codes[places] = self._code(f"{self._stage_name(first.stage)}_{phases}", places)
        label = f"{first.stage}{phases}{first.microbatch}"
        return Job(task=label, code=self.codes[places], microbatch=first.microbatch)

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
        between = self._reach(first, self.successors) & self._reach(second, self.predecessors)
        return not (between - first - second)

    def _edges(self) -> Iterator[tuple[Place, Place]]:
        for var, users in self.used_by.items():
            position = self.definition.get(var)
            source = None if position is None else self.loop.places[position]  # type: ignore[index]
            if source is not None:
                for user in users - {source}:
                    yield source, user

    def _neighbours(self) -> tuple[dict[Place, set[Place]], dict[Place, set[Place]]]:
        """For each place, those that use its values, and those whose values it uses."""
        successors: dict[Place, set[Place]] = {}
        predecessors: dict[Place, set[Place]] = {}
        for source, user in self._edges():
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

    def _code(self, name: str, places: tuple[Place, ...]) -> TaskCode:
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
        writer = _CodeWriter(self)
        for var in taken:
            writer.take(var)
        writer.equations.extend(equations)
        crossing = [
            var
            for position in positions
            if self.loop.places[position] in own  # type: ignore[index]
            for var in self.body.eqns[position].outvars
            if self.used_by.get(var, own) - own
        ]
        for var in crossing:
            writer.outputs.append((Local(self.number, var), var))
        for atom, target in terms:
            writer.accumulate(atom, target)
        return writer.code(name)


def _finish(jobs: list[Job], results: Sequence[Var]) -> list[Job]:
    """Notes with each accumulator's last job which result it becomes."""
    last = {v: position for position, job in enumerate(jobs) for v in job.code.outputs if isinstance(v, Total)}
    finished: dict[int, list[tuple[Total, Var]]] = {}
    for total, position in last.items():
        finished.setdefault(position, []).append((total, results[total.target]))
    return [replace(job, finished=tuple(finished.get(position, ()))) for position, job in enumerate(jobs)]


class _CodeWriter:
    """Writes the code of one task of a loop around the equations of its body."""

    def __init__(self, tasks: LoopTasks) -> None:
        self.tasks = tasks
        self.inputs: dict[Value, Var] = {}
        self.equations: list[Equation] = []
        self.outputs: list[tuple[Value, Any]] = []
        self.totals: dict[Value, Any] = {}

    def take(self, var: Var) -> None:
        """Makes a value from outside the task available under its name in the body."""
        tasks = self.tasks
        if var not in tasks.outer:
            self.inputs[Local(tasks.number, var)] = var
        elif var in tasks.leaves:
            self._slice(var)
        else:
            self._constant(var)

    def _constant(self, var: Var) -> None:
        atom = self.tasks.outer[var]
        if not is_var(atom):
            value = np.asarray(atom.val, var.aval.dtype)
            self._define(var, lambda: [lax.optimization_barrier(value)], [])
        elif Outer(atom) in self.inputs:
            self._define(var, lambda same: [lax.optimization_barrier(same)], [self.inputs[Outer(atom)]])
        else:
            self.inputs[Outer(atom)] = var

    def _slice(self, var: Var) -> None:
        leaf = self._input(Outer(self.tasks.outer[var]), self.tasks.outer[var])
        cut = lambda leaf, index: [lax.dynamic_index_in_dim(leaf, index, keepdims=False)]  # noqa: E731
        self._define(var, cut, [leaf, self._index()])

    def _index(self) -> Var:
        return self._input(Index(), jax.typeof(np.int32(0)))

    def _input(self, value: Value, like: Any) -> Var:
        if value not in self.inputs:
            self.inputs[value] = new_var(like)
        return self.inputs[value]

    def _define(self, var: Var, fn: Any, inputs: list[Any]) -> None:
        equations, (result,) = splice(fn, inputs)
        last = equations[-1]
        outputs = [var if output is result else output for output in last.outvars]
        self.equations.extend([*equations[:-1], last.replace(outvars=outputs)])

    def accumulate(self, atom: Any, target: int) -> None:
        """Adds one term to an accumulator."""
        loop = self.tasks.loop
        reduction, total = loop.reductions[target], Total(self.tasks.number, target)
        before = self.totals.get(total)
        if before is None:
            before = self._input(total, self.tasks.equation.outvars[target])
        traced = self.tasks.trace_addition(reduction, before, atom)
        equations, (after,) = splice_traced(traced, [before, atom, self._index()])
        self.equations.extend(equations)
        self.totals[total] = after

    def code(self, name: str) -> TaskCode:
        outputs = [*self.outputs, *self.totals.items()]
        jaxpr = prune(make_jaxpr(list(self.inputs.values()), self.equations, [atom for _, atom in outputs]))
        used = {var for equation in jaxpr.eqns for var in variables(equation.invars)}
        used |= set(variables(jaxpr.outvars))
        inputs = [(value, var) for value, var in self.inputs.items() if var in used]
        return TaskCode(
            name=name,
            jaxpr=make_jaxpr([var for _, var in inputs], jaxpr.eqns, jaxpr.outvars),
            inputs=tuple(value for value, _ in inputs),
            outputs=tuple(value for value, _ in outputs),
        )
