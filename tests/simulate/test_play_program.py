"""Programs against an independent event player, a naive count of bytes, and the schedules that they come from."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.errors import ProgramError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import ActorProgram, Call, Free, Input, Program, Recv, Run, Send
from jaxquard.ir.program.check import check_program
from jaxquard.ir.program.parse import parse_program
from jaxquard.ir.timeline import Track
from jaxquard.simulate import ActorLink, StageCost, play_pipeline, play_program
from tests.schedules.strategies import schedules
from tests.simulate.pipeline_oracle import bytes_at, links_of, play_events


class Builder:
    """Makes a program of a schedule's rows, and beside it the lists and the lives that an oracle has of it."""

    def __init__(self, rows, *, size_of, time_of, delay_of, transfer_s):
        self.rows = [[str(task) for task in row] for row in rows]
        self.home = {task: actor for actor, row in enumerate(self.rows) for task in row}
        self.names = list(self.home)
        self.size_of, self.time_of, self.delay_of, self.transfer_s = size_of, time_of, delay_of, transfer_s
        calls = tuple(self._call(name) for name in self.names)
        self.lists, self.slots = [], []
        self.sent = {actor: self._send_order(actor) for actor in range(len(self.rows))}
        actors = tuple(self._actor(actor) for actor in range(len(rows)))
        self.program = Program(calls=calls, actors=actors)
        self.times_s = [time_of(name) for name in self.names]

    def _type(self, name):
        return ArrayType(dtype="uint8", shape=(self.size_of(name),))

    def _call(self, name):
        before, _ = links_of(name, self.home)
        inputs = (ArrayType(dtype="uint8", shape=(3,)), *map(self._type, before))
        return Call(name=f"f{name}", inputs=inputs, outputs=(self._type(name),))

    def _send_order(self, actor):
        """The messages of an actor in their order, each with its target."""
        due = [
            (place + self.delay_of(name), place, name, self.home[other])
            for place, name in enumerate(self.rows[actor])
            for other in links_of(name, self.home)[1]
            if self.home[other] != actor
        ]
        last = len(self.rows[actor]) - 1
        return [(name, target) for _, _, name, target in sorted((min(when, last), *rest) for when, *rest in due)]

    def _actor(self, actor):
        types, instructions, found, lives = [ArrayType(dtype="uint8", shape=(3,))], [], [], {0: ["start"]}
        slot_of, pending = {}, []

        def new_slot(name):
            types.append(self._type(name))
            slot_of[name] = len(types) - 1
            return slot_of[name]

        def send_due(place):
            for due, made, name, target in sorted(one for one in pending if one[0] <= place):
                instructions.extend([Send(slots=(slot_of[name],), target=target), Free(slots=(slot_of[name],))])
                found.append(("send", name, target, self.transfer_s(name)))
                lives[slot_of[name]].append(("sent", name, last_run[0]))
                pending.remove((due, made, name, target))

        last_run = [None]
        for place, name in enumerate(self.rows[actor]):
            before, after = links_of(name, self.home)
            remote = [other for other in before if self.home[other] != actor]
            for other in remote:
                # Receives stand in the order of the sends, so that earlier ones come first.
                source = self.home[other]
                coming = [value for value, target in self.sent[source] if target == actor]
                for value in coming[: coming.index(other) + 1]:
                    if value not in slot_of:
                        slot = new_slot(value)
                        instructions.append(Recv(slots=(slot,), source=source))
                        lives[slot] = [("received", value)]
            inputs = (0, *(slot_of[other] for other in before))
            found.append(("run", name, self.time_of(name), remote))
            slot = new_slot(name)
            lives[slot] = [("run", name)]
            instructions.append(Run(task=name, call=self.names.index(name), inputs=inputs, outputs=(slot,)))
            last_run[0] = name
            for other in before:
                instructions.append(Free(slots=(slot_of[other],)))
                lives[slot_of[other]].append(("freed", name))
            for other in after:
                if self.home[other] != actor:
                    due = min(place + self.delay_of(name), len(self.rows[actor]) - 1)
                    pending.append((due, place, name, self.home[other]))
            if not after:
                instructions.append(Free(slots=(slot,)))
                lives[slot].append(("freed", name))
            send_due(place)
        self.lists.append(found)
        self.slots.append((types, lives))
        return ActorProgram(types=tuple(types), inputs=(Input(slot=0, arg=0),), instructions=tuple(instructions))

    def lives(self, actor, runs, messages):
        """The (start, end, size) of every slot, from the times of an oracle."""
        types, lives = self.slots[actor]
        found = []
        for slot, notes in lives.items():
            start, end = 0.0, math.inf
            for note in notes:
                if note[0] == "run":
                    start = runs[note[1]][0]
                elif note[0] == "received":
                    start = messages[note[1]][0]
                elif note[0] == "freed":
                    end = runs[note[1]][1]
                elif note[0] == "sent":
                    end = max(messages[note[1]][1], runs[note[2]][1])
            found.append((start, end, types[slot].shape[0]))
        return found


@st.composite
def builders(draw, max_delay=0):
    schedule = draw(schedules(max_actors=4))
    rows = schedule.rows(draw(st.integers(1, 5)))
    names = [str(task) for row in rows for task in row]
    # Drawn from a seed: one number for Hypothesis, not four for each task.
    dice = random.Random(draw(st.integers(0, 2**32)))
    numbers = {name: (dice.randint(1, 9), dice.randint(1, 9), dice.randint(0, max_delay)) for name in names}
    return Builder(
        rows,
        size_of=lambda name: numbers[name][0],
        time_of=lambda name: float(numbers[name][1]),
        # Two seconds and one for each byte: what the link below takes.
        transfer_s=lambda name: 2.0 + numbers[name][0],
        delay_of=lambda name: numbers[name][2],
    )


def play(builder, **options):
    pairs = [(a, b) for a in range(len(builder.rows)) for b in range(len(builder.rows)) if a != b]
    links = dict.fromkeys(pairs, ActorLink(latency_s=2.0, bandwidth_bytes_per_s=1.0))
    return play_program(builder.program, builder.times_s, links=links, **options)


@given(builders())
def test_times_and_memory_are_those_of_an_event_player(builder):
    check_program(builder.program)
    runs, messages = play_events(builder.lists)
    playback = play(builder)
    spans = playback.timeline.spans
    assert {s.name: (s.start_s, s.end_s) for s in spans if s.track is Track.COMPUTE} == runs
    moved = {s.name.split()[0]: (s.start_s, s.end_s) for s in spans if s.track is Track.TRANSFER}
    assert moved == messages
    moments = sorted({0.0, *(moment for when in (*runs.values(), *messages.values()) for moment in when)})
    for actor, memory in enumerate(playback.memory):
        lives = builder.lives(actor, runs, messages)
        assert [memory.at(moment) for moment in moments] == [bytes_at(lives, moment) for moment in moments]


@given(builders(max_delay=2))
def test_sends_that_come_later(builder):
    """A send that stands after further runs goes later; where that deadlocks, the program's own error says so."""
    try:
        runs, messages = play_events(builder.lists)
    except AssertionError:
        with pytest.raises(ProgramError, match="deadlock"):
            play(builder)
        return
    spans = play(builder).timeline.spans
    assert {s.name: (s.start_s, s.end_s) for s in spans if s.track is Track.COMPUTE} == runs
    assert len([s for s in spans if s.track is Track.TRANSFER]) == len(messages)


@given(schedules(max_actors=4), st.integers(1, 6), st.booleans())
def test_a_program_plays_as_the_schedule_that_it_comes_from(schedule, num_microbatches, is_synchronous):
    times_s = {"F": 1.0, "B": 4.0, "I": 3.0, "W": 1.0}
    builder = Builder(
        schedule.rows(num_microbatches),
        size_of=lambda name: 1,
        time_of=lambda name: times_s[name.strip("0123456789")],
        transfer_s=lambda name: 3.0,
        delay_of=lambda name: 0,
    )
    cost = StageCost(forward_s=1.0, input_gradient_s=3.0, weight_gradient_s=1.0, output_bytes=1)
    pairs = [(a, b) for a in range(schedule.num_actors) for b in range(schedule.num_actors) if a != b]
    links = dict.fromkeys(pairs, ActorLink(latency_s=2.0, bandwidth_bytes_per_s=1.0))
    expected = play_pipeline(
        schedule,
        [cost] * schedule.num_stages,
        num_microbatches=num_microbatches,
        links=links,
        synchronous_sends=is_synchronous,
    )
    playback = play(builder, synchronous_sends=is_synchronous)
    assert playback.timeline == expected.timeline
    assert playback.busy_s == expected.busy_s


TEXT = """\
call 0 f(float32[8,2]) -> (float32[8,2]) donates (0)
call 1 g(float32[8,2]{x,-}) -> (float32[8,2])
actor 0
  input s0 = arg 0 part 0 : float32[8,2]
  run  s1 = 0F0 f#0(s0)
  send s1 -> actor 1
  free s1
actor 1
  recv s0 <- actor 0 : float32[8,2]{x,-}
  run  s1 = 1F0 g#1(s0)
  output result 0 part 0 = s1
"""


def test_a_donated_slot_goes_when_its_run_starts():
    program = parse_program(TEXT)
    playback = play_program(program, [1.0, 1.0], links={(0, 1): ActorLink(latency_s=4.0)}, axis_sizes={"x": 4})
    first, second = playback.memory
    assert (first.peak_bytes, first.at(0.5), first.at(4.5), first.at(5.0)) == (64, 64, 64, 0)
    # A quarter of the received value, while it comes, and the whole result.
    assert (second.at(0.5), second.at(1.0), second.at(5.0)) == (0, 16, 80)


def test_a_received_output_is_waited_for():
    text = "actor 0\n recv s0 <- actor 1 : float32[]\n output result 0 part 0 = s0\nactor 1\n"
    text += " input s0 = arg 0 part 0 : float32[]\n send s0 -> actor 0\n"
    playback = play_program(parse_program(text), [], links={(1, 0): ActorLink(latency_s=3.0)})
    assert playback.step_time_s == 3.0
    assert playback.loop_time_s == playback.bubble == 0.0
    assert [span.name for span in playback.timeline.spans] == ["input to actor 0"]


def test_times_of_too_few_calls():
    with pytest.raises(ProgramError, match="the program has 2 calls, but there are times of 1"):
        play_program(parse_program(TEXT), [1.0])


def test_a_message_that_is_never_sent():
    text = TEXT.replace("  send s1 -> actor 1\n", "")
    with pytest.raises(ProgramError, match="actor 1 receives message 0 from actor 0, which never sends it"):
        play_program(parse_program(text), [1.0, 1.0])
