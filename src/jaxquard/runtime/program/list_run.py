"""One actor's part of one step: binds the inputs, runs the list, fills the cells of the results.

A part is either run by the actor's own thread, which waits for messages, or played together with the other
actors' parts by one thread (see `in_process.pace`): then it stops where a message is missing, and goes on later.

`_run` is the loop that everything else is kept out of: it costs about 4 us a task over the bare calls and
transfers, and a whole step about 10 (`benchmarks/engine_overhead.py`).

When a task fails, or an actor that this one waits for gives up, this one gives up too:
it sends `_GAVE_UP` in the place of a message to everyone it sends to, gives back the donated inputs that no
task has consumed, and is ready for the next step.
"""

import queue
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import jax

from jaxquard.errors import MeshError
from jaxquard.runtime.program.actor import ActorReport, Feeder
from jaxquard.runtime.program.link_program import ARRIVE, RUN, SEND, ActorList
from jaxquard.runtime.program.timings import ActorClock
from jaxquard.runtime.result_cell import ResultCell, StepLost
from jaxquard.runtime.step_state import StepState
from jaxquard.runtime.transfer import copy_array, place

_GAVE_UP = None
_ENDED = object()

MessageQueue = queue.SimpleQueue


class ListRun:
    """One actor's part of a step, as a job for its feeder or to be played together with others."""

    def __init__(
        self,
        *,
        actor_list: ActorList,
        is_in_place: bool,
        fastest_s: list[float],
        state: StepState,
        after: StepState | None,
        inputs: tuple[jax.Array | ResultCell, ...],
        cells: tuple[ResultCell, ...],
        shared_cells: frozenset[ResultCell],
        channels: dict[tuple[int, int], MessageQueue],
        clock: ActorClock | None,
        engine: Any,
    ) -> None:
        """Prepares a run; nothing happens until the feeder calls it.

        Args:
            is_in_place: tasks run in the calling thread and are looked at when they return.
            fastest_s: receives, for each call, its fastest time if tasks run in place.
            after: a step that must have ended before, as it was not queued on the same thread.
            shared_cells: donated cells that another actor reads too; whoever donates them gets a copy.
            engine: kept so that it is not collected, and its threads halted, before its work is done.
        """
        actor = actor_list.actor
        self._list = actor_list
        self._is_in_place = is_in_place
        self._fastest_s = fastest_s
        self._after = after
        self._state = state
        self._inputs = inputs
        self._cells = cells
        self._shared_cells = shared_cells
        self._receive = tuple(channels[source, actor] for source in actor_list.sources)
        self._send = tuple(channels[actor, target] for target in actor_list.targets)
        self._clock = clock
        self._engine = engine
        self._report = ActorReport(actor=actor, state=state)

    def __call__(self, feeder: Feeder) -> None:
        for _ in self.play(feeder, waits=True):
            pass

    def play(self, feeder: Feeder, *, waits: bool) -> Iterator[None]:
        """Runs the part, and yields wherever a message is missing, unless it waits for messages."""
        slots: list[Any] = [None] * self._list.num_slots
        try:
            if self._after is not None:
                self._after.wait_finished()
            self._bind(slots)
            yield from self._run(slots, feeder, waits)
            self._finish(slots)
        except StepLost:
            self._give_up(slots)
        except BaseException as cause:
            self._report.fail(order=-1, task="(placing inputs)", cause=cause)
            self._give_up(slots)
        # A traceback that keeps this frame must not keep the buffers.
        slots.clear()
        self._inputs = self._cells = ()
        self._state.report_dispatched(self._list.actor)
        if self._is_in_place:
            self._report.end()
        else:
            feeder.in_flight.add_end(self._report)

    def _bind(self, slots: list[Any]) -> None:
        actor = self._list.actor
        for slot, array in self._list.constants:
            slots[slot] = array
        for item, value in zip(self._list.inputs, self._inputs, strict=True):
            buffer = value.read(actor) if isinstance(value, ResultCell) else value
            if buffer.sharding != item.sharding:
                buffer = place(buffer, item.sharding)
            elif item.is_donated and isinstance(value, ResultCell):
                if value in self._shared_cells:
                    buffer = copy_array(buffer)
                else:
                    value.release()
            slots[item.slot] = buffer

    def _run(self, slots: list[Any], feeder: Feeder, waits: bool) -> Iterator[None]:
        in_flight, report, clock = feeder.in_flight, self._report, self._clock
        receive, send = self._receive, self._send
        is_in_place, fastest_s, now = self._is_in_place, self._fastest_s, time.perf_counter
        order, name = -1, ""
        try:
            for kind, order, name, position, work in self._list.instructions:
                if kind == RUN:
                    number, call, gather, outputs, dead, adds_witness = work
                    if not is_in_place:
                        in_flight.make_room()
                        if report.failure is not None:
                            raise StepLost
                    if feeder.is_halting:
                        raise MeshError("the mesh was closed before the step had ended")
                    if clock is not None:
                        clock.start(position)
                    start_s = now()
                    values = call(*gather(slots))
                    witness = values.pop() if adds_witness else values[-1]
                    if is_in_place:
                        witness.block_until_ready()
                        time_s = now() - start_s
                        if time_s < fastest_s[number]:
                            fastest_s[number] = time_s
                    else:
                        in_flight.add(report, order, name, witness)
                    for slot in dead:
                        slots[slot] = None
                    if type(outputs) is slice:
                        slots[outputs] = values
                    else:
                        for slot, value in zip(outputs, values, strict=True):
                            slots[slot] = value
                    if clock is not None:
                        clock.watch_run(position, witness)
                elif kind == SEND:
                    channel, moves = work
                    if clock is not None:
                        clock.start(position)
                    values = [move(slots[slot]) for slot, move in moves]
                    if clock is not None:
                        clock.watch_send(position, values)
                    send[channel].put(values)
                elif kind == ARRIVE:
                    channel, arrived = work
                    while not waits and receive[channel].empty():
                        yield
                    values = receive[channel].get()
                    if values is _GAVE_UP:
                        raise StepLost
                    for slot, value in zip(arrived, values, strict=True):
                        slots[slot] = value
                else:
                    for slot in work:
                        slots[slot] = None
        except StepLost:
            raise
        except BaseException as cause:
            in_flight.settle_all()
            report.fail(order=order, task=name, cause=cause)
            raise StepLost from cause

    def _finish(self, slots: list[Any]) -> None:
        for output, cell in zip(self._list.outputs, self._cells, strict=True):
            value = slots[output.slot]
            cell.fill(copy_array(value) if output.is_borrowed else value)
        for item, value in zip(self._list.inputs, self._inputs, strict=True):
            if item.is_donated:
                self._report.is_intact = False
                if isinstance(value, ResultCell) and value not in self._shared_cells:
                    value.release()

    def _give_up(self, slots: list[Any]) -> None:
        for channel in self._send:
            channel.put(_GAVE_UP)
        for item, value in zip(self._list.inputs, self._inputs, strict=True):
            if not item.is_donated:
                continue
            if isinstance(value, ResultCell):
                value.give_back(slots[item.slot])
            if value.is_deleted():
                self._report.is_intact = False


class JointRun:
    """All actors' parts of a step, run in turns by one thread."""

    def __init__(self, runs: tuple[ListRun, ...]) -> None:
        self._runs = runs

    def __call__(self, feeder: Feeder) -> None:
        waiting = deque(run.play(feeder, waits=False) for run in self._runs)
        self._runs = ()
        while waiting:
            player = waiting.popleft()
            if next(player, _ENDED) is not _ENDED:
                waiting.append(player)
