"""Reads the text of a program that `write` wrote."""

import json
import re
from collections.abc import Callable

from jaxquard.errors import ProgramError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program.instructions import (
    ActorProgram,
    Call,
    Constant,
    Free,
    Input,
    Instruction,
    Output,
    Recv,
    Run,
    Send,
)
from jaxquard.ir.program.program import Program

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


def parse_program(text: str) -> Program:
    """Reads the text of a program.

    Raises:
        ProgramError: naming the first line that cannot be read.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip().split(maxsplit=1)
        if words:
            reader.read(number, words[0], words[1].strip() if len(words) > 1 else "")
    return reader.program()


def _read_name(text: str) -> str:
    return json.loads(text) if text.startswith('"') else text


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
                f"A line starts with one of {known} and has the form that str(program) gives it."
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
