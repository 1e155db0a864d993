"""Unrolls tasks into instructions, and inserts the transfers between actors (JaxPP, 4.2).

    actor 0: 0F0 0F1 ...      actor 1: 1F0 ...
    =>
    actor 0: run 0F0 ; send a -> 1 ; run 0F1 ; ...      actor 1: recv a <- 0 ; run 1F0 ; ...

The tasks are walked in one global order that keeps all dependences. A value is sent as soon as it
exists, straight to each actor that uses it, and its receive is posted at that same point of the
global order: so sends and receives between two actors match one to one, in order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxquard.errors import ScheduleError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.jaxpr_tools import close, fingerprint, is_var
from jaxquard.ir.program import (
    ActorProgram,
    Call,
    Constant,
    Input,
    Instruction,
    Output,
    Program,
    Recv,
    Run,
    Send,
)
from jaxquard.ir.step import Step
from jaxquard.pipeline.tasks.place_equations import StepPlacement
from jaxquard.pipeline.tasks.task_code import ActorTask, Carried, Index, Local, Outer, TaskCode, TaskRows, Total, Value

Specs = dict[Value, tuple[tuple[str, ...], ...]]


# A value of one microbatch: the number of the value, and that of the microbatch. Values are numbered
# because they are looked up for every task, and whole values are slow to hash.
_Exact = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbered:
    """A value that a task takes or gives."""

    value: Value
    number: int

    @property
    def is_local(self) -> bool:
        return isinstance(self.value, Local | Index | Carried)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CodeValues:
    """The inputs and outputs of a task, numbered; `awaited` are those that it may have to wait for."""

    inputs: tuple[_Numbered, ...]
    outputs: tuple[_Numbered, ...]
    awaited: tuple[tuple[int, bool], ...]


def build_program(
    step: Step,
    *,
    placement: StepPlacement,
    tasks: TaskRows,
    specs: Specs,
) -> Program:
    """Returns the program of the tasks; nothing is freed or donated yet but the accumulators."""
    builder = _Builder(step, placement, tasks, specs)
    builder.define_inputs()
    builder.run_tasks()
    return builder.program()


class _Actor:
    """The list of one actor while it is written."""

    def __init__(self) -> None:
        self.types: list[ArrayType] = []
        self.slots: dict[_Exact, int] = {}
        self.inputs: list[Input] = []
        self.constants: list[Constant] = []
        self.instructions: list[Instruction] = []
        self.outputs: list[Output] = []
        self.next_task = 0

    def new_slot(self, exact: _Exact, type_: ArrayType) -> int:
        self.types.append(type_)
        self.slots[exact] = len(self.types) - 1
        return len(self.types) - 1


class _Builder:
    def __init__(self, step: Step, placement: StepPlacement, tasks: TaskRows, specs: Specs) -> None:
        self.step, self.placement, self.tasks, self.specs = step, placement, tasks, specs
        self.actors = [_Actor() for _ in tasks]
        self.calls: list[Call] = []
        self.call_numbers: dict[Any, int] = {}
        self.number_of_code: dict[TaskCode, int] = {}
        self.constants: list[Any] = list(step.constants)
        self.index_values: dict[int, int] = {}
        self.numbers: dict[Value, int] = {}
        self.code_values: dict[TaskCode, _CodeValues] = {}
        self.wanted = self._wanted()
        self.made_outside = [
            {self.number(value) for task in row if task.microbatch is None for value in task.code.outputs}
            for row in tasks
        ]

    def number(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def outer(self, atom: Any) -> _Exact:
        return self.number(Outer(atom)), 0

    def values(self, code: TaskCode) -> _CodeValues:
        if code not in self.code_values:
            inputs = tuple(_Numbered(value=value, number=self.number(value)) for value in code.inputs)
            outputs = tuple(_Numbered(value=value, number=self.number(value)) for value in code.outputs)
            awaited = tuple((v.number, v.is_local) for v in inputs if not isinstance(v.value, Index | Total))
            self.code_values[code] = _CodeValues(inputs=inputs, outputs=outputs, awaited=awaited)
        return self.code_values[code]

    @staticmethod
    def _taken(value: _Numbered, task: ActorTask) -> _Exact:
        return value.number, task.microbatch or 0 if value.is_local else 0

    @staticmethod
    def _made(value: _Numbered, task: ActorTask) -> _Exact:
        """An output of a task; what it carries is for the next microbatch, and from outside the loop for the first."""
        if isinstance(value.value, Carried):
            return value.number, 0 if task.microbatch is None else task.microbatch + 1
        return value.number, task.microbatch or 0 if value.is_local else 0

    def _awaited(self, task: ActorTask) -> list[_Exact]:
        microbatch = task.microbatch or 0
        return [(number, microbatch if local else 0) for number, local in self.values(task.code).awaited]

    def _wanted(self) -> dict[_Exact, dict[int, None]]:
        """Returns, for each value, the actors whose tasks take it from outside themselves."""
        wanted: dict[_Exact, dict[int, None]] = {}
        for actor, row in enumerate(self.tasks):
            made: set[_Exact] = set()
            for task in row:
                for exact in self._awaited(task):
                    if exact not in made:
                        wanted.setdefault(exact, {})[actor] = None
                made.update(self._made(value, task) for value in self.values(task.code).outputs)
        for position, atom in enumerate(self.step.jaxpr.outvars):
            for actor in self.placement.result_actors[position]:
                wanted.setdefault(self.outer(atom), {})[actor] = None
        return wanted

    def array_type(self, value: Value, aval: Any) -> ArrayType:
        return ArrayType(dtype=str(aval.dtype), shape=tuple(aval.shape), spec=self.specs.get(value, ()))

    def array_types(self, values: Iterable[Value], atoms: Iterable[Any]) -> tuple[ArrayType, ...]:
        return tuple(self.array_type(value, atom.aval) for value, atom in zip(values, atoms, strict=True))

    def define_inputs(self) -> None:
        """Defines inputs and constants, and sends them to the actors that do not hold them."""
        numbers = [(arg, part) for arg, parts in enumerate(self.step.arg_parts) for part in range(max(1, len(parts)))]
        for position, var in enumerate(self.step.jaxpr.invars):
            exact = self.outer(var)
            type_ = self.array_type(Outer(var), var.aval)
            for actor in self.placement.input_actors[position]:
                slot = self.actors[actor].new_slot(exact, type_)
                if position < len(numbers):
                    arg, part = numbers[position]
                    self.actors[actor].inputs.append(Input(slot=slot, arg=arg, part=part))
                else:
                    self.actors[actor].constants.append(Constant(slot=slot, value=position - len(numbers)))
        for position, var in enumerate(self.step.jaxpr.invars):
            for actor in self.placement.input_actors[position][:1]:
                self._send(actor, [self.outer(var)])

    def run_tasks(self) -> None:
        """Runs every task in a global order: round by round, each actor as far as one task."""
        left = sum(len(row) for row in self.tasks)
        while left:
            ready = [actor for actor in range(len(self.tasks)) if self._is_ready(actor)]
            if not ready:
                raise ScheduleError(self._deadlock())
            for actor in ready:
                self._run(actor, self.tasks[actor][self.actors[actor].next_task])
                self.actors[actor].next_task += 1
            left -= len(ready)

    def _missing(self, actor: int) -> list[_Exact]:
        state = self.actors[actor]
        if state.next_task == len(self.tasks[actor]):
            return []
        awaited = self._awaited(self.tasks[actor][state.next_task])
        return [exact for exact in awaited if exact not in state.slots]

    def _is_ready(self, actor: int) -> bool:
        return self.actors[actor].next_task < len(self.tasks[actor]) and not self._missing(actor)

    def _deadlock(self) -> str:
        waits = []
        for actor, state in enumerate(self.actors):
            missing = self._missing(actor)
            if missing:
                task = self.tasks[actor][state.next_task]
                waits.append(f"{task.label} (actor {actor}) waits for {self._maker(missing[0])}")
        return "the schedule deadlocks on this step: " + "; ".join(waits) + ". Reorder these tasks."

    def _maker(self, exact: _Exact) -> str:
        for actor, row in enumerate(self.tasks):
            for task in row:
                if any(self._made(value, task) == exact for value in self.values(task.code).outputs):
                    return f"{task.label} (actor {actor})"
        return "a value that no task makes"

    def _run(self, actor: int, task: ActorTask) -> None:
        state, values = self.actors[actor], self.values(task.code)
        call = self._call(task.code)
        inputs = tuple(self._input_slot(state, value, task) for value in values.inputs)
        exacts = [self._made(value, task) for value in values.outputs]
        outputs = tuple(
            state.new_slot(exact, type_) for exact, type_ in zip(exacts, self.calls[call].outputs, strict=True)
        )
        made = [
            exact for exact, value in zip(exacts, values.outputs, strict=True) if not isinstance(value.value, Total)
        ]
        state.instructions.append(Run(task=task.label, call=call, inputs=inputs, outputs=outputs))
        for value, var in task.finished:
            finished = self._made(_Numbered(value=value, number=self.number(value)), task)
            state.slots[self.outer(var)] = state.slots[finished]
            made.append(self.outer(var))
        self._send(actor, made)

    def _input_slot(self, state: _Actor, value: _Numbered, task: ActorTask) -> int:
        exact = self._taken(value, task)
        if isinstance(value.value, Index) and exact not in state.slots:
            microbatch = exact[1]
            if microbatch not in self.index_values:
                self.index_values[microbatch] = len(self.constants)
                self.constants.append(np.int32(microbatch))
            slot = state.new_slot(exact, ArrayType(dtype="int32", shape=()))
            state.constants.append(Constant(slot=slot, value=self.index_values[microbatch]))
        return state.slots[exact]

    def _send(self, actor: int, made: list[_Exact]) -> None:
        """Sends new values to every actor that wants them and lacks them."""
        targets: dict[int, list[_Exact]] = {}
        for exact in made:
            for target in self.wanted.get(exact, ()):
                if target != actor and exact not in self.actors[target].slots and not self._makes(target, exact):
                    targets.setdefault(target, []).append(exact)
        source = self.actors[actor]
        for target, exacts in targets.items():
            slots = tuple(source.slots[exact] for exact in exacts)
            source.instructions.append(Send(slots=slots, target=target))
            received = tuple(
                self.actors[target].new_slot(exact, source.types[slot])
                for exact, slot in zip(exacts, slots, strict=True)
            )
            self.actors[target].instructions.append(Recv(slots=received, source=actor))

    def _makes(self, actor: int, exact: _Exact) -> bool:
        """Returns True if an actor will make a value for itself."""
        return exact[0] in self.made_outside[actor]

    def _call(self, code: TaskCode) -> int:
        """The number of a call; tasks that compute the same share one."""
        if code not in self.number_of_code:
            call = self._new_call(code)
            key = (fingerprint(code.jaxpr), call.inputs, call.outputs, call.donated)
            if key not in self.call_numbers:
                self.call_numbers[key] = len(self.calls)
                self.calls.append(call)
            self.number_of_code[code] = self.call_numbers[key]
        return self.number_of_code[code]

    def _new_call(self, code: TaskCode) -> Call:
        donated = tuple(p for p, value in enumerate(code.inputs) if isinstance(value, Total) or value in code.consumed)
        return Call(
            name=code.name,
            inputs=self.array_types(code.inputs, code.jaxpr.invars),
            outputs=self.array_types(code.outputs, code.jaxpr.outvars),
            donated=donated,
            code=close(code.jaxpr),
        )

    def program(self) -> Program:
        numbers = [
            (result, part) for result, parts in enumerate(self.step.result_parts) for part in range(max(1, len(parts)))
        ]
        for position, atom in enumerate(self.step.jaxpr.outvars):
            assert is_var(atom)
            for actor in self.placement.result_actors[position]:
                state = self.actors[actor]
                result, part = numbers[position]
                state.outputs.append(Output(slot=state.slots[self.outer(atom)], result=result, part=part))
        return Program(
            calls=tuple(self.calls),
            actors=tuple(
                ActorProgram(
                    types=tuple(state.types),
                    inputs=tuple(state.inputs),
                    constants=tuple(state.constants),
                    instructions=tuple(state.instructions),
                    outputs=tuple(state.outputs),
                )
                for state in self.actors
            ),
            constants=tuple(self.constants),
        )
