"""Plays a whole program with the seconds of its calls, instruction by instruction.

A `Run` takes the seconds of its call. A `Send` goes when its actor reaches it; a `Run`, a `Send` or a `Free` that uses
a received slot for the first time waits for it, as the runtimes do (`find_waits`). Memory follows the slots:

    weights       inputs of the step and constants, from 0 on
    activations   results of runs, from the start of the run
    transfers     received slots, from when their sender begins to send
    all of them   until a `Free` is reached and what was sent of the slot has arrived, or a run donates the slot, whose
                  buffer then is its result's; slots that are not freed stay
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from jaxquard.errors import ProgramError
from jaxquard.ir.array_type import type_bytes
from jaxquard.ir.program.instructions import ActorProgram, Free, Instruction, Recv, Run, Send
from jaxquard.ir.program.order import find_waits, order_program
from jaxquard.ir.program.program import Program
from jaxquard.simulate.actor_link import INSTANT, NO_LINKS, ActorLinks
from jaxquard.simulate.actor_memory import ACTIVATIONS, TRANSFERS, WEIGHTS, ActorMemory, Lives, add_up
from jaxquard.simulate.pipeline_playback import PipelinePlayback, PlayedTransfers
from jaxquard.simulate.play_steps import NO_MESSAGE, ActorSteps, Messages, PlayedSteps, play_steps


def play_program(
    program: Program,
    call_times_s: Sequence[float],
    *,
    links: ActorLinks = NO_LINKS,
    axis_sizes: Mapping[str, int] = MappingProxyType({}),
    synchronous_sends: bool = False,
) -> PipelinePlayback:
    """Plays a program.

    Args:
        call_times_s: the seconds of each of the program's calls.
        links: between actors (`link_actors`); a pair that is not in it transfers in no time.
        axis_sizes: the sizes of the mesh axes of an actor: transfers and memory are those of one device's share.
        synchronous_sends: actors compute nothing while they send or receive.

    Raises:
        ProgramError: if the actors wait for each other, or there is not one time for each call.

    Example:
        >>> from jaxquard.ir.program.parse import parse_program
        >>> program = parse_program('''
        ... call 0 f(float32[8]) -> (float32[8])
        ... actor 0
        ...   input s0 = arg 0 part 0 : float32[8]
        ...   run  s1 = 0F0 f#0(s0)
        ...   send s1 -> actor 1
        ... actor 1
        ...   recv s0 <- actor 0 : float32[8]
        ...   run  s1 = 1F0 f#0(s0)
        ...   output result 0 part 0 = s1
        ... ''')
        >>> link = jq.simulate.ActorLink(latency_s=0.25)
        >>> playback = jq.simulate.play_program(program, [1.0], links={(0, 1): link})
        >>> playback.step_time_s, playback.peaks_bytes
        (2.25, (64, 64))
    """
    if len(call_times_s) != len(program.calls):
        raise ProgramError(
            f"the program has {len(program.calls)} calls, but there are times of {len(call_times_s)}. Give the "
            "seconds of each call."
        )
    sends = _find_sends(program, links, axis_sizes)
    actors = [
        _list_steps(actor, actor_program, call_times_s, sends.numbers)
        for actor, actor_program in enumerate(program.actors)
    ]
    played = play_steps([listed.steps for listed in actors], sends.messages, is_synchronous=synchronous_sends)
    if played.waiting:
        order_program(program)
        raise AssertionError("the program runs, but the player waits")
    return _collect(program, actors, sends, played, axis_sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sends:
    """All messages of a program: their numbers by source, target and place among those; instruction, bytes, target."""

    numbers: dict[tuple[int, int, int], int]
    messages: Messages
    places: list[tuple[int, int]]
    sizes: list[int]
    targets: list[int]


def _find_sends(program: Program, links: ActorLinks, axis_sizes: Mapping[str, int]) -> _Sends:
    num_actors = len(program.actors)
    found = _Sends(numbers={}, messages=Messages(links=[], times_s=[]), places=[], sizes=[], targets=[])
    counts: dict[tuple[int, int], int] = {}
    for source, actor_program in enumerate(program.actors):
        for position, instruction in enumerate(actor_program.instructions):
            if isinstance(instruction, Send):
                pair = source, instruction.target
                size = sum(type_bytes(actor_program.types[slot], axis_sizes) for slot in instruction.slots)
                found.numbers[*pair, counts.get(pair, 0)] = len(found.places)
                counts[pair] = counts.get(pair, 0) + 1
                found.messages.links.append(source * num_actors + instruction.target)
                found.messages.times_s.append(links.get(pair, INSTANT).time_s(size))
                found.places.append((source, position))
                found.sizes.append(size)
                found.targets.append(instruction.target)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """The steps of an actor, and the step at which each instruction is reached; one more for the end of the list."""

    steps: ActorSteps
    reached: list[int] = field(default_factory=list)


def _list_steps(
    actor: int, program: ActorProgram, call_times_s: Sequence[float], numbers: dict[tuple[int, int, int], int]
) -> _Listed:
    listed = _Listed(steps=ActorSteps(times_s=[], waits=[], sends=[]))
    waits: dict[int, set[int]] = {}
    for wait in find_waits(program):
        number = numbers.get((wait.source, actor, wait.message))
        if number is None:
            raise ProgramError(
                f"actor {actor} receives message {wait.message} from actor {wait.source}, which never sends it. Add it."
            )
        waits.setdefault(wait.instruction, set()).add(number)
    sent: dict[int, int] = {}

    def add(time_s: float, *, wait: int = NO_MESSAGE, send: int = NO_MESSAGE) -> None:
        listed.steps.times_s.append(time_s)
        listed.steps.waits.append(wait)
        listed.steps.sends.append(send)

    for position, instruction in enumerate((*program.instructions, None)):
        for number in sorted(waits.get(position, ())):
            add(0.0, wait=number)
        listed.reached.append(len(listed.steps.times_s))
        if isinstance(instruction, Run):
            add(float(call_times_s[instruction.call]))
        elif isinstance(instruction, Send):
            place = sent.get(instruction.target, 0)
            sent[instruction.target] = place + 1
            add(0.0, send=numbers[actor, instruction.target, place])
    # The end of the list is reached by a step too.
    add(0.0)
    return listed


def _collect(
    program: Program, actors: Sequence[_Listed], sends: _Sends, played: PlayedSteps, axis_sizes: Mapping[str, int]
) -> PipelinePlayback:
    """Returns the runs as tasks, the transfers and the memory."""
    names: list[str] = []
    starts_s: list[float] = []
    ends_s: list[float] = []
    bounds, makers = [0], []
    for actor_program, listed, times_s in zip(program.actors, actors, played.starts_s, strict=True):
        last = -1
        for position, instruction in enumerate(actor_program.instructions):
            if isinstance(instruction, Run):
                step, last = listed.reached[position], len(names)
                names.append(instruction.task)
                starts_s.append(times_s[step])
                ends_s.append(times_s[step] + listed.steps.times_s[step])
            elif isinstance(instruction, Send):
                makers.append(last)
        bounds.append(len(names))
    end_s = max([0.0, *(times_s[-1] for times_s in played.starts_s)])
    memory = tuple(
        _SlotLives(program, actor, listed, sends, played).memory(axis_sizes) for actor, listed in enumerate(actors)
    )
    return PipelinePlayback(
        bounds=tuple(bounds),
        starts_s=np.asarray(starts_s),
        ends_s=np.asarray(ends_s),
        task_name=names.__getitem__,
        outside=(),
        step_time_s=end_s,
        find_transfers=lambda: _transfers(sends, played, makers),
        find_memory=lambda: memory,
    )


def _transfers(sends: _Sends, played: PlayedSteps, makers: Sequence[int]) -> PlayedTransfers:
    times_s = np.asarray(sends.messages.times_s)
    chosen = np.flatnonzero(times_s > 0)
    starts_s = np.asarray(played.sent_s)[chosen]
    return PlayedTransfers(
        tasks=np.asarray(makers, dtype=np.int64)[chosen],
        sources=np.asarray([source for source, _ in sends.places], dtype=np.int64)[chosen],
        targets=np.asarray(sends.targets, dtype=np.int64)[chosen],
        starts_s=starts_s,
        ends_s=starts_s + times_s[chosen],
        sizes_bytes=np.asarray(sends.sizes, dtype=np.int64)[chosen],
    )


class _SlotLives:
    """The slots of one actor: the part that each belongs to, when it comes and when it goes."""

    def __init__(self, program: Program, actor: int, listed: _Listed, sends: _Sends, played: PlayedSteps) -> None:
        self.calls, self.program, self.actor = program.calls, program.actors[actor], actor
        self.listed, self.times_s = listed, played.starts_s[actor]
        self.numbers, self.played = sends.numbers, played
        self.starts: dict[int, tuple[str, float]] = {}
        self.ends_s: dict[int, float] = {}
        # Until when a slot is being sent.
        self.sending_s: dict[int, float] = {}
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()

    def memory(self, axis_sizes: Mapping[str, int]) -> ActorMemory:
        """Follows the instructions, and adds up the bytes of all slots."""
        for source in (*self.program.inputs, *self.program.constants):
            self.starts[source.slot] = WEIGHTS, 0.0
        for position, instruction in enumerate(self.program.instructions):
            self._follow(position, instruction)
        lives: dict[str, list[Lives]] = {}
        for part in (WEIGHTS, ACTIVATIONS, TRANSFERS):
            slots = [slot for slot, (of_part, _) in self.starts.items() if of_part == part]
            starts_s = np.asarray([self.starts[slot][1] for slot in slots])
            ends_s = np.asarray([self.ends_s.get(slot, math.inf) for slot in slots])
            sizes = np.asarray([type_bytes(self.program.types[slot], axis_sizes) for slot in slots], dtype=np.int64)
            lives[part] = [(starts_s, ends_s, sizes)]
        return add_up(lives, always={})

    def _follow(self, position: int, instruction: Instruction) -> None:
        step = self.listed.reached[position]
        match instruction:
            case Run():
                now_s = self.times_s[step]
                self.starts.update((slot, (ACTIVATIONS, now_s)) for slot in instruction.outputs)
                donated = self.calls[instruction.call].donated
                self.ends_s.update((instruction.inputs[place], now_s) for place in donated)
            case Send():
                number = self.numbers[self.actor, instruction.target, self.sent[instruction.target]]
                self.sent[instruction.target] += 1
                arrived_s = self.played.arrived_s[number]
                self.sending_s.update((slot, arrived_s) for slot in instruction.slots)
            case Recv():
                number = self.numbers[instruction.source, self.actor, self.received[instruction.source]]
                self.received[instruction.source] += 1
                comes_s = self.played.received_s[number]
                self.starts.update((slot, (TRANSFERS, comes_s)) for slot in instruction.slots)
            case Free():
                now_s = self.times_s[step - 1] + self.listed.steps.times_s[step - 1] if step else 0.0
                self.ends_s.update((slot, max(now_s, self.sending_s.get(slot, 0.0))) for slot in instruction.slots)
