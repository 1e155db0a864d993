"""Measures when each task and transfer of one step really ran, on one clock.

An end is when the result was there, not when it was dispatched. On CPU an actor has one task in flight, so
its thread simply waits for the task and looks at the clock. Elsewhere that would stop the actor from
dispatching ahead, so two watcher threads for each actor, for tasks and for transfers, wait in its place.

A start cannot be seen from outside; it is the latest of what must have happened before:

- a task: its dispatch, the end of the actor's task before it, the arrival of what it received;
- a transfer: its dispatch, the end of the task that made what is sent.

Transfers are on the track of the sender. One caveat off CPU: if the receiver donates what it received before
it has arrived, the end of that transfer cannot be watched, and the time it takes is part of the task.
"""

import queue
import threading
import time
from collections.abc import Sequence

import jax

from jaxquard.ir.array_type import type_bytes
from jaxquard.ir.program import ActorProgram, Program, Run, Send
from jaxquard.ir.program.order import find_waits
from jaxquard.ir.timeline import Span, Timeline, Track


class ActorClock:
    """Records dispatches and ends on one actor; positions are those of the program's instructions."""

    def __init__(self, *, waits_in_place: bool) -> None:
        self.dispatches: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self._watchers = None if waits_in_place else (Watcher(self.ends), Watcher(self.ends))

    def start(self, position: int) -> None:
        self.dispatches[position] = time.perf_counter()

    def watch_run(self, position: int, witness: jax.Array) -> None:
        self._watch(0, position, [witness])

    def watch_send(self, position: int, arrays: list[jax.Array]) -> None:
        self._watch(1, position, arrays)

    def close(self) -> None:
        """Waits until every end is recorded."""
        for watcher in self._watchers or ():
            watcher.close()

    def _watch(self, watcher: int, position: int, arrays: list[jax.Array]) -> None:
        if self._watchers is None:
            _wait_for(arrays)
            self.ends[position] = time.perf_counter()
        else:
            self._watchers[watcher].watch(position, arrays)


class Watcher:
    """A thread that waits for arrays in order and records when they were ready."""

    def __init__(self, ends: dict[int, float]) -> None:
        self._ends = ends
        self._inbox: queue.SimpleQueue[tuple[int, list[jax.Array]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="jaxquard watcher", daemon=True)
        self._thread.start()

    def watch(self, position: int, arrays: list[jax.Array]) -> None:
        self._inbox.put((position, arrays))

    def close(self) -> None:
        """Waits until everything is recorded."""
        self._inbox.put(None)
        self._thread.join()

    def leave(self) -> None:
        """Lets the thread end by itself, as it may wait for an array that never comes."""
        self._inbox.put(None)

    def _run(self) -> None:
        while (item := self._inbox.get()) is not None:
            _wait_for(item[1])
            self._ends.setdefault(item[0], time.perf_counter())


def _wait_for(arrays: list[jax.Array]) -> None:
    """Waits for arrays; failed and donated ones count as ready, as their errors are reported elsewhere."""
    for array in arrays:
        try:
            array.block_until_ready()
        except Exception:
            continue


def make_timeline(program: Program, clocks: Sequence[ActorClock]) -> Timeline:
    """Joins the records of all actors; times count from the first dispatch of the step."""
    spans = []
    arrivals = _find_arrivals(program, clocks)
    for actor, (actor_program, clock) in enumerate(zip(program.actors, clocks, strict=True)):
        spans += _compute_spans(actor, actor_program, clock, arrivals)
        spans += _transfer_spans(actor, actor_program, clock)
    spans.sort(key=lambda span: (span.start_s, span.actor, span.track.value))
    first = min((span.start_s for span in spans), default=0.0)
    return Timeline(num_actors=len(clocks), spans=tuple(_shift(span, -first) for span in spans))


def _compute_spans(
    actor: int, program: ActorProgram, clock: ActorClock, arrivals: dict[tuple[int, int], float]
) -> list[Span]:
    spans, previous_end = [], 0.0
    for position, instruction in enumerate(program.instructions):
        if isinstance(instruction, Run) and position in clock.ends:
            start = max(clock.dispatches[position], previous_end, arrivals.get((actor, position), 0.0))
            end = previous_end = max(clock.ends[position], start)
            spans.append(Span(actor=actor, track=Track.COMPUTE, name=instruction.task, start_s=start, end_s=end))
    return spans


def _transfer_spans(actor: int, program: ActorProgram, clock: ActorClock) -> list[Span]:
    spans: list[Span] = []
    made: dict[int, tuple[str, float]] = {}
    for position, instruction in enumerate(program.instructions):
        if position not in clock.ends:
            continue
        if isinstance(instruction, Run):
            made.update(dict.fromkeys(instruction.outputs, (instruction.task, clock.ends[position])))
        elif isinstance(instruction, Send):
            origins = [made.get(slot, (f"s{slot}", 0.0)) for slot in instruction.slots]
            start = max(clock.dispatches[position], *(end for _, end in origins), 0.0)
            spans.append(
                Span(
                    actor=actor,
                    track=Track.TRANSFER,
                    name=f"{', '.join(dict.fromkeys(name for name, _ in origins))} to {instruction.target}",
                    start_s=start,
                    end_s=max(clock.ends[position], start),
                    size_bytes=sum(type_bytes(program.types[slot]) for slot in instruction.slots),
                )
            )
    return spans


def _find_arrivals(program: Program, clocks: Sequence[ActorClock]) -> dict[tuple[int, int], float]:
    """For each (actor, instruction) that waits for messages, when the last of them had come."""
    ends: dict[tuple[int, int], list[float]] = {}
    for source, (actor_program, clock) in enumerate(zip(program.actors, clocks, strict=True)):
        for position, instruction in enumerate(actor_program.instructions):
            if isinstance(instruction, Send):
                ends.setdefault((source, instruction.target), []).append(clock.ends.get(position, 0.0))
    arrivals: dict[tuple[int, int], float] = {}
    for actor, actor_program in enumerate(program.actors):
        for wait in find_waits(actor_program):
            key = (actor, wait.instruction)
            arrivals[key] = max(arrivals.get(key, 0.0), ends[wait.source, actor][wait.message])
    return arrivals


def _shift(span: Span, offset_s: float) -> Span:
    return Span(
        actor=span.actor,
        track=span.track,
        name=span.name,
        start_s=span.start_s + offset_s,
        end_s=span.end_s + offset_s,
        size_bytes=span.size_bytes,
    )
