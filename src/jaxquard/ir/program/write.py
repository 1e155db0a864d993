"""The text of a program, one instruction a line; `parse` reads it back.

    donates args (0)
    call 0 stage0_forward(float32[16,64], float32[64,16]) -> (float32[16,16]) donates (0)
    actor 0
      input   s0 = arg 0 part 0 : float32[16,64]
      const   s2 = value 0 : int32[]
      run     s5, s6 = 0F0 stage0_forward#0(s0, s1, s2)
      send    s5 -> actor 1
      recv    s9 <- actor 1 : float32[16,16]
      free    s5
      output  result 3 part 0 = s12

The types of what a `run` defines are those of its call. A slot that nothing defines, or whose type
differs from its definition (both are mistakes that `check_program` reports), has a line of its own,
`slot s7 : float32[4]`, so that reading back gives the very same program, right or wrong. A name that is
not one plain word is written as a JSON string, an empty list of slots as `-`. Code and the values of
constants are not written.
"""

import json
import re
from collections.abc import Iterable, Sequence

from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program.instructions import ActorProgram, Call, Free, Instruction, Recv, Run, Send

_PLAIN_NAME = re.compile(r"[\w.<>+-]+")


def write_program(calls: Sequence[Call], actors: Sequence[ActorProgram], *, donated_args: Sequence[int] = ()) -> str:
    """Returns the text of a whole program: `str(program)`."""
    lines = []
    if donated_args:
        lines.append(f"donates args ({_numbers(donated_args)})")
    lines += [_write_call(number, call) for number, call in enumerate(calls)]
    for actor, actor_program in enumerate(actors):
        lines.append(f"actor {actor}")
        lines += ["  " + line for line in _write_actor(actor_program, calls)]
    return "\n".join(lines) + "\n"


def write_instruction(
    instruction: Instruction, calls: Sequence[Call], types: tuple[ArrayType, ...] | None = None
) -> str:
    """One instruction; a receive shows types only where they are given."""
    match instruction:
        case Run(task=task, call=call, inputs=inputs, outputs=outputs):
            name = _name(calls[call].name) if call < len(calls) else "unknown"
            arguments = _slots(inputs) if inputs else ""
            return f"run     {_slots(outputs)} = {_name(task)} {name}#{call}({arguments})"
        case Send(slots=slots, target=target):
            return f"send    {_slots(slots)} -> actor {target}"
        case Recv(slots=slots, source=source):
            text = f"recv    {_slots(slots)} <- actor {source}"
            return text if types is None else f"{text} : {_types(types[slot] for slot in slots) or '-'}"
        case Free(slots=slots):
            return f"free    {_slots(slots)}"


def _write_call(number: int, call: Call) -> str:
    text = f"call {number} {_name(call.name)}({_types(call.inputs)}) -> ({_types(call.outputs)})"
    return text + f" donates ({_numbers(call.donated)})" if call.donated else text


def _write_actor(actor: ActorProgram, calls: Sequence[Call]) -> list[str]:
    types = actor.types
    lines = [f"slot    s{slot} : {types[slot]}" for slot in _untyped_slots(actor, calls)]
    lines += [f"input   s{i.slot} = arg {i.arg} part {i.part} : {types[i.slot]}" for i in actor.inputs]
    lines += [f"const   s{c.slot} = value {c.value} : {types[c.slot]}" for c in actor.constants]
    lines += [write_instruction(instruction, calls, types) for instruction in actor.instructions]
    lines += [f"output  result {o.result} part {o.part} = s{o.slot}" for o in actor.outputs]
    return lines


def _untyped_slots(actor: ActorProgram, calls: Sequence[Call]) -> list[int]:
    """Returns the slots whose type the other lines do not show."""
    shown: dict[int, ArrayType] = {}
    for definition in (*actor.inputs, *actor.constants):
        shown[definition.slot] = actor.types[definition.slot]
    for instruction in actor.instructions:
        if isinstance(instruction, Recv):
            shown.update((slot, actor.types[slot]) for slot in instruction.slots)
        elif isinstance(instruction, Run):
            shown.update(zip(instruction.outputs, calls[instruction.call].outputs, strict=False))
    return [slot for slot, type_ in enumerate(actor.types) if shown.get(slot) != type_]


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)


def _slots(slots: tuple[int, ...]) -> str:
    return ", ".join(f"s{slot}" for slot in slots) or "-"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _types(types: Iterable[ArrayType]) -> str:
    return ", ".join(map(str, types))
