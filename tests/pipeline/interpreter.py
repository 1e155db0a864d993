"""Runs a program in one thread, operation by operation, and trusts nothing in it.

Code is evaluated eagerly (`eager`), so that a new program costs no compilation: JAX keeps the compiled primitives. A
slot can be read while it is alive and never after a `Free` or a donation; a receive can be used only after its
send; copies of a result on several actors must be equal; and at the end nothing may be left but results,
constants and borrowed inputs.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.ir.program import ActorProgram, Free, Program, Recv, Run, Send
from tests.pipeline.eager import evaluate


class _Waits(Exception):
    """The actor needs a value that has not been sent yet."""


class _Actor:
    def __init__(self, number: int, program: ActorProgram) -> None:
        self.number, self.program = number, program
        self.values: dict[int, Any] = {}
        self.pending: dict[int, tuple[int, int, int]] = {}
        self.dead: dict[int, str] = {}
        self.position = 0
        self.received = [0] * 64

    def is_done(self) -> bool:
        return self.position == len(self.program.instructions)

    def define(self, slot: int, value: Any) -> None:
        assert slot not in self.values, f"s{slot} on actor {self.number} is defined twice"
        assert slot not in self.dead, f"s{slot} on actor {self.number} is defined again after it was {self.dead[slot]}"
        type_ = self.program.types[slot]
        found = (str(value.dtype), tuple(value.shape))
        assert found == (type_.dtype, type_.shape), f"s{slot} on actor {self.number}: {found} is not {type_}"
        self.values[slot] = value

    def read(self, slot: int) -> Any:
        assert slot not in self.dead, f"s{slot} on actor {self.number} is read after it was {self.dead[slot]}"
        assert slot in self.values, f"s{slot} on actor {self.number} is read before it is defined"
        return self.values[slot]

    def kill(self, slot: int, reason: str) -> None:
        self.read(slot)
        del self.values[slot]
        self.dead[slot] = reason


class Interpreter:
    """One run of a program on flat arguments; `arg_parts` says how each is split along its first dim."""

    def __init__(self, program: Program, args: Sequence[Any], arg_parts: Sequence[tuple[int, ...]] = ()) -> None:
        self.program = program
        self.actors = [_Actor(number, actor) for number, actor in enumerate(program.actors)]
        self.messages: dict[tuple[int, int], list[list[Any]]] = {}
        for actor in self.actors:
            for item in actor.program.inputs:
                parts = arg_parts[item.arg] if arg_parts else ()
                actor.define(item.slot, _part(args[item.arg], parts, item.part))
            for constant in actor.program.constants:
                actor.define(constant.slot, jnp.asarray(program.constants[constant.value]))

    def run(self) -> list[Any]:
        """The flat results, parts joined."""
        while not all(actor.is_done() for actor in self.actors):
            moved = [self._run_until_it_waits(actor) for actor in self.actors]
            assert any(moved), f"deadlock at {[actor.position for actor in self.actors]}"
        return self._results()

    def _run_until_it_waits(self, actor: _Actor) -> bool:
        start = actor.position
        while not actor.is_done():
            try:
                self._step(actor)
            except _Waits:
                break
            actor.position += 1
        return actor.position > start

    def _step(self, actor: _Actor) -> None:
        instruction = actor.program.instructions[actor.position]
        if isinstance(instruction, Recv):
            number = actor.received[instruction.source]
            actor.received[instruction.source] += 1
            for place, slot in enumerate(instruction.slots):
                actor.pending[slot] = (instruction.source, number, place)
            return
        used = instruction.inputs if isinstance(instruction, Run) else instruction.slots
        self._take_messages(actor, used)
        if isinstance(instruction, Run):
            self._run(actor, instruction)
        elif isinstance(instruction, Send):
            channel = self.messages.setdefault((actor.number, instruction.target), [])
            channel.append([actor.read(slot) for slot in instruction.slots])
        else:
            assert isinstance(instruction, Free)
            for slot in instruction.slots:
                actor.kill(slot, "freed")

    def _take_messages(self, actor: _Actor, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot in actor.pending:
                source, number, place = actor.pending[slot]
                sent = self.messages.get((source, actor.number), [])
                if number >= len(sent):
                    raise _Waits
                del actor.pending[slot]
                actor.define(slot, sent[number][place])

    def _run(self, actor: _Actor, run: Run) -> None:
        call = self.program.calls[run.call]
        results = evaluate(call.code, [actor.read(slot) for slot in run.inputs])
        for position in call.donated:
            actor.kill(run.inputs[position], f"donated to {run.task}")
        for slot, value in zip(run.outputs, results, strict=True):
            actor.define(slot, value)

    def _results(self) -> list[Any]:
        copies: dict[int, dict[int, list[Any]]] = {}
        for actor in self.actors:
            self._take_messages(actor, [output.slot for output in actor.program.outputs])
            assert not actor.pending, f"actor {actor.number} never used {list(actor.pending)}"
            for output in actor.program.outputs:
                copies.setdefault(output.result, {}).setdefault(output.part, []).append(actor.read(output.slot))
            kept = {item.slot for item in (*actor.program.outputs, *actor.program.constants)}
            kept |= {item.slot for item in actor.program.inputs if item.arg not in self.program.donated_args}
            assert set(actor.values) <= kept, f"actor {actor.number} leaks {set(actor.values) - kept}"
        return [_join(copies[result]) for result in sorted(copies)]


def interpret(program: Program, args: Sequence[Any], arg_parts: Sequence[tuple[int, ...]] = ()) -> list[Any]:
    """The flat results of a program."""
    return Interpreter(program, args, arg_parts).run()


def _part(value: Any, sizes: tuple[int, ...], part: int) -> Any:
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    array = value if is_key or not sizes else np.asarray(value)
    if not sizes:
        return array
    start = sum(sizes[:part])
    return array[start : start + sizes[part]]


def _join(parts: dict[int, list[Any]]) -> Any:
    for copies in parts.values():
        for copy in copies[1:]:
            np.testing.assert_array_equal(_plain(copy), _plain(copies[0]), err_msg="copies of a result differ")
    ordered = [parts[part][0] for part in range(len(parts))]
    if len(ordered) == 1:
        return jnp.asarray(ordered[0])
    is_key = jnp.issubdtype(ordered[0].dtype, jax.dtypes.prng_key)
    return jnp.concatenate(ordered) if is_key else jnp.asarray(np.concatenate(ordered))


def _plain(value: Any) -> np.ndarray:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)
