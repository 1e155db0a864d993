"""Checks a program against the rules of the instruction list (design decision 2).

What it keeps: each slot is defined once, before its uses, and not used after it was freed or donated; calls
get and give the types of their signature; the k-th send from a to b and the k-th receive on b from a agree;
no deadlock; every result is there at the end, and nothing else stays behind. A slot that was sent is never
donated on the sender, where a peer may still read it, and only what the step owns is donated at all.

Time is linear: types are compared as small numbers, and each instruction is looked at twice.
"""

from typing import Any

from jaxquard.errors import ProgramError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program.instructions import Free, Recv, Run, Send
from jaxquard.ir.program.order import order_program
from jaxquard.ir.program.program import Program
from jaxquard.ir.program.write import write_instruction

_UNDEFINED, _LIVE, _FREED, _DONATED = range(4)
_STATE_WORDS = {
    _UNDEFINED: "before anything has defined it",
    _FREED: "after it was freed",
    _DONATED: "after it was donated",
}


def check_program(program: Program) -> None:
    """Raises ProgramError, one line, for the first rule that the program breaks."""
    numbers = _TypeNumbers()
    checkers = [_ActorChecker(program, actor, numbers) for actor in range(len(program.actors))]
    for checker in checkers:
        checker.check()
    _check_messages(program, checkers)
    order_program(program)
    _check_results(program)


class _TypeNumbers:
    """Gives equal types equal small numbers, so that comparing them is cheap."""

    def __init__(self) -> None:
        self._by_identity: dict[int, int] = {}
        self._by_value: dict[ArrayType, int] = {}
        self._kept: list[ArrayType] = []

    def __call__(self, types: tuple[ArrayType, ...]) -> list[int]:
        return [self._by_identity.get(id(type_)) or self._new(type_) for type_ in types]

    def _new(self, type_: ArrayType) -> int:
        number = self._by_value.setdefault(type_, len(self._by_value) + 1)
        self._by_identity[id(type_)] = number
        self._kept.append(type_)
        return number


class _ActorChecker:
    """Follows the state of each slot through one actor's list."""

    def __init__(self, program: Program, actor: int, numbers: _TypeNumbers) -> None:
        self.program = program
        self.actor = actor
        self.actor_program = program.actors[actor]
        self.types = numbers(self.actor_program.types)
        self.call_types = [(numbers(call.inputs), numbers(call.outputs)) for call in program.calls]
        self.state = bytearray(len(self.types))
        self.was_sent = bytearray(len(self.types))
        donated_args = frozenset(program.donated_args)
        self.borrowed = {constant.slot: "a constant" for constant in self.actor_program.constants} | {
            item.slot: f"argument {item.arg}, which the step does not donate"
            for item in self.actor_program.inputs
            if item.arg not in donated_args
        }
        self.sends: dict[int, list[int]] = {}
        self.receives: dict[int, list[int]] = {}
        self.position: Any = None

    def check(self) -> None:
        for item in (*self.actor_program.inputs, *self.actor_program.constants):
            self._define((item.slot,))
        rules: dict[type, Any] = {Run: self._run, Send: self._send, Recv: self._receive, Free: self._free}
        for position, instruction in enumerate(self.actor_program.instructions):
            self.position = position
            rules[type(instruction)](instruction)
        self.position = None
        self._check_end()

    def fail(self, message: str, position: int | None = None) -> ProgramError:
        position = self.position if position is None else position
        where = f"actor {self.actor}"
        if position is not None:
            text = write_instruction(self.actor_program.instructions[position], self.program.calls)
            where += f", instruction {position} ({' '.join(text.split())})"
        return ProgramError(f"{where}: {message}")

    def _define(self, slots: tuple[int, ...]) -> None:
        state = self.state
        for slot in slots:
            if slot >= len(state):
                raise self.fail(f"s{slot} has no type; the actor has types for {len(state)} slots.")
            if state[slot] != _UNDEFINED:
                raise self.fail(f"s{slot} is defined a second time. Give each value a slot of its own.")
            state[slot] = _LIVE

    def _use(self, slots: tuple[int, ...]) -> None:
        state = self.state
        for slot in slots:
            if slot >= len(state):
                raise self.fail(f"s{slot} has no type; the actor has types for {len(state)} slots.")
            if state[slot] != _LIVE:
                raise self.fail(f"s{slot} is used {_STATE_WORDS[state[slot]]}.")

    def _run(self, run: Run) -> None:
        if run.call >= len(self.program.calls):
            raise self.fail(f"there is no call {run.call}; the program has {len(self.program.calls)}.")
        self._use(run.inputs)
        inputs, outputs = self.call_types[run.call]
        types = self.types
        if [types[slot] for slot in run.inputs] != inputs:
            raise self._type_error("takes", run.inputs, self.program.calls[run.call].inputs)
        donated = self.program.calls[run.call].donated
        if donated:
            self._donate(run, donated)
        self._define(run.outputs)
        if [types[slot] for slot in run.outputs] != outputs:
            raise self._type_error("gives", run.outputs, self.program.calls[run.call].outputs)

    def _donate(self, run: Run, donated: tuple[int, ...]) -> None:
        for position in donated:
            slot = run.inputs[position]
            if self.was_sent[slot]:
                raise self.fail(
                    f"s{slot} is donated, but was sent before and a peer may still read it. Free it instead."
                )
            if slot in self.borrowed:
                raise self.fail(f"s{slot} is donated, but it is {self.borrowed[slot]}.")
            if run.inputs.count(slot) > 1:
                raise self.fail(f"s{slot} is donated, but the same call takes it more than once.")
            self.state[slot] = _DONATED

    def _send(self, send: Send) -> None:
        if send.target >= len(self.program.actors) or send.target == self.actor:
            raise self.fail(f"there is no other actor {send.target}; the program has {len(self.program.actors)}.")
        self._use(send.slots)
        for slot in send.slots:
            self.was_sent[slot] = 1
        self.sends.setdefault(send.target, []).append(self.position)

    def _receive(self, receive: Recv) -> None:
        if receive.source >= len(self.program.actors) or receive.source == self.actor:
            raise self.fail(f"there is no other actor {receive.source}; the program has {len(self.program.actors)}.")
        self._define(receive.slots)
        self.receives.setdefault(receive.source, []).append(self.position)

    def _free(self, free: Free) -> None:
        self._use(free.slots)
        for slot in free.slots:
            if self.state[slot] == _FREED:
                raise self.fail(f"s{slot} is freed twice.")
            self.state[slot] = _FREED

    def _type_error(self, verb: str, slots: tuple[int, ...], expected: tuple[ArrayType, ...]) -> ProgramError:
        if len(slots) != len(expected):
            return self.fail(f"the call {verb} {len(expected)} values, but the instruction has {len(slots)}.")
        types = self.actor_program.types
        slot, wanted = next((s, t) for s, t in zip(slots, expected, strict=True) if types[s] != t)
        return self.fail(f"the call {verb} {wanted}, but s{slot} is {types[slot]}.")

    def _check_end(self) -> None:
        state = self.state
        outputs = {output.slot for output in self.actor_program.outputs}
        for output in self.actor_program.outputs:
            if output.slot >= len(state) or state[output.slot] != _LIVE:
                words = _STATE_WORDS[state[output.slot]] if output.slot < len(state) else "but has no type"
                raise self.fail(f"result {output.result} part {output.part} is read from s{output.slot} {words}.")
        for slot, slot_state in enumerate(state):
            if slot_state == _UNDEFINED:
                raise self.fail(f"s{slot} is never defined. Leave it out, or define it.")
            if slot_state == _LIVE and slot not in outputs and slot not in self.borrowed:
                raise self.fail(f"s{slot} is still there at the end (a leak). Free it after its last use.")


def _check_messages(program: Program, checkers: list[_ActorChecker]) -> None:
    for source in checkers:
        for target in checkers:
            sends = source.sends.get(target.actor, [])
            receives = target.receives.get(source.actor, [])
            for number, (send, receive) in enumerate(zip(sends, receives, strict=False)):
                _check_message(program, source, target, number, send, receive)
            if len(sends) > len(receives):
                raise source.fail(
                    f"send {len(receives)} to actor {target.actor} has no receive there.",
                    sends[len(receives)],
                )
            if len(receives) > len(sends):
                raise target.fail(
                    f"receive {len(sends)} from actor {source.actor} has no send there.", receives[len(sends)]
                )


def _check_message(
    program: Program, source: _ActorChecker, target: _ActorChecker, number: int, send: int, receive: int
) -> None:
    sending: Any = source.actor_program.instructions[send]
    receiving: Any = target.actor_program.instructions[receive]
    sent, received = sending.slots, receiving.slots
    if len(sent) != len(received):
        raise target.fail(
            f"receive {number} from actor {source.actor} takes {len(received)} slots, but that send has {len(sent)}.",
            receive,
        )
    for ours, theirs in zip(received, sent, strict=True):
        if target.types[ours] != source.types[theirs]:
            _check_same_value(target, source, ours, theirs, receive)


def _check_same_value(target: _ActorChecker, source: _ActorChecker, ours: int, theirs: int, receive: int) -> None:
    """A transfer may change the sharding, never the shape or the dtype."""
    expected, found = target.actor_program.types[ours], source.actor_program.types[theirs]
    if (expected.shape, expected.dtype) != (found.shape, found.dtype):
        raise target.fail(f"s{ours} is {expected}, but s{theirs} that actor {source.actor} sends is {found}.", receive)


def _check_results(program: Program) -> None:
    found: dict[tuple[int, int], ArrayType] = {}
    for actor, actor_program in enumerate(program.actors):
        mine = set()
        for output in actor_program.outputs:
            key, type_ = (output.result, output.part), actor_program.types[output.slot]
            first = found.setdefault(key, type_)
            if key in mine or (first.shape, first.dtype) != (type_.shape, type_.dtype):
                raise ProgramError(
                    f"actor {actor}: s{output.slot} ({type_}) is given as result {key[0]} part {key[1]}, "
                    f"which is {first} already."
                )
            mine.add(key)
    results = {result for result, _ in found}
    for result in range(max(results, default=-1) + 1):
        parts = {part for number, part in found if number == result}
        missing = set(range(max(parts, default=0) + 1)) - parts
        if missing:
            raise ProgramError(f"result {result} part {min(missing)} is missing: no actor has it among its outputs.")
