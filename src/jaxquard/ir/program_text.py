"""The text of a program, one instruction a line, and its parser.

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
from collections.abc import Callable, Iterable

from jaxquard.errors import ProgramError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import (
    ActorProgram,
    Call,
    Constant,
    Free,
    Input,
    Instruction,
    Output,
    Program,
    Recv,
    Run,
    Send,
)

_PLAIN_NAME = re.compile(r"[\w.<>+-]+")
_NAME = r'([\w.<>+-]+|"(?:[^"\\]|\\.)*")'
_CALL = re.compile(_NAME + r"\((.*?)\) -> \((.*?)\)(?: donates \((.*)\))?")
_INPUT = re.compile(r"s(\d+) = arg (\d+) part (\d+) : (\S+)")
_CONSTANT = re.compile(r"s(\d+) = value (\d+) : (\S+)")
_SLOT = re.compile(r"s(\d+) : (\S+)")
_RUN = re.compile(rf"(.*?) = {_NAME} {_NAME}#(\d+)\((.*)\)")
_SEND = re.compile(r"(.*) -> actor (\d+)")
_RECV = re.compile(r"(.*?) <- actor (\d+) : (.*)")
_FREE = re.compile(r"(.*)")
_OUTPUT = re.compile(r"result (\d+) part (\d+) = s(\d+)")


def write_program(program: Program) -> str:
    """The text of a whole program."""
    lines = []
    if program.donated_args:
        lines.append(f"donates args ({_numbers(program.donated_args)})")
    lines += [_write_call(number, call) for number, call in enumerate(program.calls)]
    for actor, actor_program in enumerate(program.actors):
        lines.append(f"actor {actor}")
        lines += ["  " + line for line in _write_actor(actor_program, program.calls)]
    return "\n".join(lines) + "\n"


def write_instruction(
    instruction: Instruction, calls: tuple[Call, ...], types: tuple[ArrayType, ...] | None = None
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


def parse_program(text: str) -> Program:
    """Reads what `write_program` wrote.

    Raises:
        ProgramError: naming the first line that cannot be read.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip().split(maxsplit=1)
        if words:
            reader.read(number, words[0], words[1].strip() if len(words) > 1 else "")
    return reader.program()


def _write_call(number: int, call: Call) -> str:
    text = f"call {number} {_name(call.name)}({_types(call.inputs)}) -> ({_types(call.outputs)})"
    return text + f" donates ({_numbers(call.donated)})" if call.donated else text


def _write_actor(actor: ActorProgram, calls: tuple[Call, ...]) -> list[str]:
    types = actor.types
    lines = [f"slot    s{slot} : {types[slot]}" for slot in _untold_slots(actor, calls)]
    lines += [f"input   s{i.slot} = arg {i.arg} part {i.part} : {types[i.slot]}" for i in actor.inputs]
    lines += [f"const   s{c.slot} = value {c.value} : {types[c.slot]}" for c in actor.constants]
    lines += [write_instruction(instruction, calls, types) for instruction in actor.instructions]
    lines += [f"output  result {o.result} part {o.part} = s{o.slot}" for o in actor.outputs]
    return lines


def _untold_slots(actor: ActorProgram, calls: tuple[Call, ...]) -> list[int]:
    """Slots whose type the other lines do not tell."""
    told: dict[int, ArrayType] = {}
    for definition in (*actor.inputs, *actor.constants):
        told[definition.slot] = actor.types[definition.slot]
    for instruction in actor.instructions:
        if isinstance(instruction, Recv):
            told.update((slot, actor.types[slot]) for slot in instruction.slots)
        elif isinstance(instruction, Run):
            told.update(zip(instruction.outputs, calls[instruction.call].outputs, strict=False))
    return [slot for slot, type_ in enumerate(actor.types) if told.get(slot) != type_]


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)


def _read_name(text: str) -> str:
    return json.loads(text) if text.startswith('"') else text


def _slots(slots: tuple[int, ...]) -> str:
    return ", ".join(f"s{slot}" for slot in slots) or "-"


def _numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _types(types: Iterable[ArrayType]) -> str:
    return ", ".join(map(str, types))


def _read_slots(text: str) -> tuple[int, ...]:
    return tuple(int(slot.strip().removeprefix("s")) for slot in text.split(",") if slot.strip() not in ("", "-"))


def _match(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    """The groups of a line that must have this form."""
    found = pattern.fullmatch(text)
    assert found is not None, f"not a line of a program: {text!r}"
    return found.groups()


def _read_numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in (text or "").split(",") if number.strip())


def _read_types(text: str) -> tuple[ArrayType, ...]:
    return tuple(ArrayType.parse(part) for part in text.split(", ") if part not in ("", "-"))


class _ActorReader:
    """Collects the lines of one actor."""

    def __init__(self) -> None:
        self.types: dict[int, ArrayType] = {}
        self.fixed_types: dict[int, ArrayType] = {}
        self.inputs: list[Input] = []
        self.constants: list[Constant] = []
        self.instructions: list[Instruction] = []
        self.outputs: list[Output] = []

    def program(self) -> ActorProgram:
        types = self.types | self.fixed_types
        return ActorProgram(
            types=tuple(types[slot] for slot in range(len(types))),
            inputs=tuple(self.inputs),
            constants=tuple(self.constants),
            instructions=tuple(self.instructions),
            outputs=tuple(self.outputs),
        )


class _Reader:
    """Reads line by line; `_LINES` says which method reads which kind."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.actors: list[_ActorReader] = []
        self.donated_args: tuple[int, ...] = ()

    def read(self, number: int, kind: str, rest: str) -> None:
        try:
            _LINES[kind](self, rest)
        except (KeyError, AttributeError, ValueError, IndexError, AssertionError) as error:
            known = ", ".join(_LINES)
            raise ProgramError(
                f"line {number} of the program cannot be read: {kind} {rest!r}. "
                f"A line starts with one of {known} and has the form that write_program gives it."
            ) from error

    def program(self) -> Program:
        return Program(
            calls=tuple(self.calls),
            actors=tuple(actor.program() for actor in self.actors),
            donated_args=self.donated_args,
        )

    def donates(self, rest: str) -> None:
        self.donated_args = _read_numbers(rest.removeprefix("args (").removesuffix(")"))

    def call(self, rest: str) -> None:
        number, signature = rest.split(maxsplit=1)
        assert int(number) == len(self.calls)
        name, inputs, outputs, donated = _match(_CALL, signature)
        self.calls.append(
            Call(
                name=_read_name(name),
                inputs=_read_types(inputs),
                outputs=_read_types(outputs),
                donated=_read_numbers(donated),
            )
        )

    def actor(self, rest: str) -> None:
        assert int(rest) == len(self.actors)
        self.actors.append(_ActorReader())

    def slot(self, rest: str) -> None:
        slot, type_ = _match(_SLOT, rest)
        self.actors[-1].fixed_types[int(slot)] = ArrayType.parse(type_)

    def input(self, rest: str) -> None:
        slot, arg, part, type_ = _match(_INPUT, rest)
        self.actors[-1].types[int(slot)] = ArrayType.parse(type_)
        self.actors[-1].inputs.append(Input(slot=int(slot), arg=int(arg), part=int(part)))

    def constant(self, rest: str) -> None:
        slot, value, type_ = _match(_CONSTANT, rest)
        self.actors[-1].types[int(slot)] = ArrayType.parse(type_)
        self.actors[-1].constants.append(Constant(slot=int(slot), value=int(value)))

    def run(self, rest: str) -> None:
        outputs, task, _, call, inputs = _match(_RUN, rest)
        run = Run(task=_read_name(task), call=int(call), inputs=_read_slots(inputs), outputs=_read_slots(outputs))
        self.actors[-1].types.update(zip(run.outputs, self.calls[run.call].outputs, strict=False))
        self.actors[-1].instructions.append(run)

    def send(self, rest: str) -> None:
        slots, target = _match(_SEND, rest)
        self.actors[-1].instructions.append(Send(slots=_read_slots(slots), target=int(target)))

    def recv(self, rest: str) -> None:
        slots, source, types = _match(_RECV, rest)
        recv = Recv(slots=_read_slots(slots), source=int(source))
        self.actors[-1].types.update(zip(recv.slots, _read_types(types), strict=True))
        self.actors[-1].instructions.append(recv)

    def free(self, rest: str) -> None:
        self.actors[-1].instructions.append(Free(slots=_read_slots(_match(_FREE, rest)[0])))

    def output(self, rest: str) -> None:
        result, part, slot = _match(_OUTPUT, rest)
        self.actors[-1].outputs.append(Output(slot=int(slot), result=int(result), part=int(part)))


_LINES: dict[str, Callable[[_Reader, str], None]] = {
    "donates": _Reader.donates,
    "call": _Reader.call,
    "actor": _Reader.actor,
    "slot": _Reader.slot,
    "input": _Reader.input,
    "const": _Reader.constant,
    "run": _Reader.run,
    "send": _Reader.send,
    "recv": _Reader.recv,
    "free": _Reader.free,
    "output": _Reader.output,
}
