"""Ends the life of every slot: by donation where a call can reuse the buffer, else by a `Free`.

    run b = after(a) ; (a is not used again)
    =>
    run b = after(a) donating a         or         run b = after(a) ; free a

Donated are accumulators, arguments that the user donates and values made by tasks, when they die
in a task outside the loops that has an output of their type. What was sent is never donated: the
other actor may still read it (JaxPP, section 4.3).
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from jaxquard.ir.program import ActorProgram, Call, Free, Instruction, Program, Run, Send


def insert_frees(program: Program, *, donated_args: Collection[int]) -> Program:
    """Adds the frees and donations of a program that has none but its accumulators' donations."""
    calls = _Calls(program.calls)
    actors = tuple(_free_actor(actor, calls, set(donated_args)) for actor in program.actors)
    program = replace(program, calls=tuple(calls.calls), actors=actors, donated_args=tuple(sorted(donated_args)))
    return _drop_unused_calls(program)


class _Calls:
    """The calls of a program, and their variants with more donations."""

    def __init__(self, calls: tuple[Call, ...]) -> None:
        self.calls = list(calls)
        self.variants: dict[tuple[int, tuple[int, ...]], int] = {}

    def donating(self, number: int, donated: tuple[int, ...]) -> int:
        if donated == self.calls[number].donated:
            return number
        key = (number, donated)
        if key not in self.variants:
            self.variants[key] = len(self.calls)
            self.calls.append(replace(self.calls[number], donated=donated))
        return self.variants[key]


def _uses(instruction: Instruction) -> tuple[int, ...]:
    if isinstance(instruction, Run):
        return instruction.inputs
    return instruction.slots if isinstance(instruction, Send) else ()


def _makes(instruction: Instruction) -> tuple[int, ...]:
    if isinstance(instruction, Run):
        return instruction.outputs
    return () if isinstance(instruction, Send | Free) else instruction.slots


def _free_actor(actor: ActorProgram, calls: _Calls, donated_args: set[int]) -> ActorProgram:
    kept = {output.slot for output in actor.outputs} | {constant.slot for constant in actor.constants}
    last: dict[int, int] = {}
    for position, instruction in enumerate(actor.instructions):
        for slot in (*_makes(instruction), *_uses(instruction)):
            last[slot] = position
    dying: dict[int, list[int]] = {}
    for slot, position in last.items():
        if slot not in kept:
            dying.setdefault(position, []).append(slot)
    owned = _owned(actor, donated_args)
    written: list[Instruction] = []
    unused = [entry.slot for entry in actor.inputs if entry.slot not in last and entry.slot not in kept]
    if unused:
        written.append(Free(slots=tuple(unused)))
    for position, instruction in enumerate(actor.instructions):
        dead = dying.get(position, [])
        if isinstance(instruction, Run):
            instruction, dead = _donate(instruction, dead, actor, calls, owned)
        written.append(instruction)
        if dead:
            written.append(Free(slots=tuple(dead)))
    return replace(actor, instructions=tuple(written))


def _owned(actor: ActorProgram, donated_args: set[int]) -> set[int]:
    """Slots whose buffers are this program's to reuse."""
    owned = {entry.slot for entry in actor.inputs if entry.arg in donated_args}
    for instruction in actor.instructions:
        if isinstance(instruction, Run):
            owned.update(instruction.outputs)
    for instruction in actor.instructions:
        if isinstance(instruction, Send):
            owned.difference_update(instruction.slots)
    return owned


def _donate(run: Run, dead: list[int], actor: ActorProgram, calls: _Calls, owned: set[int]) -> tuple[Run, list[int]]:
    call = calls.calls[run.call]
    given = {run.inputs[position] for position in call.donated}
    free_outputs = Counter(call.outputs)
    free_outputs.subtract(call.inputs[position] for position in call.donated)
    donated = list(call.donated)
    in_loop = bool(call.donated) or run.task[:1].isdigit()
    for position, slot in enumerate(run.inputs):
        type_ = call.inputs[position]
        if in_loop or slot not in dead or slot not in owned or slot in given or run.inputs.count(slot) > 1:
            continue
        if free_outputs[type_] > 0:
            free_outputs[type_] -= 1
            donated.append(position)
            given.add(slot)
    number = calls.donating(run.call, tuple(sorted(donated)))
    return replace(run, call=number), [slot for slot in dead if slot not in given]


def _drop_unused_calls(program: Program) -> Program:
    used = sorted({i.call for actor in program.actors for i in actor.instructions if isinstance(i, Run)})
    number = {call: position for position, call in enumerate(used)}
    actors = tuple(
        replace(
            actor,
            instructions=tuple(
                replace(i, call=number[i.call]) if isinstance(i, Run) else i for i in actor.instructions
            ),
        )
        for actor in program.actors
    )
    return replace(program, calls=tuple(program.calls[call] for call in used), actors=actors)
