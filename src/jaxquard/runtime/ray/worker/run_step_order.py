"""Runs one actor's part of a step in its own process, and returns the outcome."""

import traceback
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np

from jaxquard.runtime.program.actor import Actor
from jaxquard.runtime.program.list_run import ListRun
from jaxquard.runtime.program.timings import ActorClock
from jaxquard.runtime.ray.messages import ClockReport, RemoteFailure, StepOrder, StepReply
from jaxquard.runtime.ray.worker.channels import Inbox, Outbox, Unacknowledged
from jaxquard.runtime.ray.worker.self_report import ActivityFile
from jaxquard.runtime.ray.worker.worker_program import WorkerProgram
from jaxquard.runtime.result_cell import ResultCell
from jaxquard.runtime.step_state import StepState, TaskFailure, error_text
from jaxquard.runtime.transfer import as_data, as_value, place
from jaxquard.runtime.transports.protocol import TransferStopped

# Results up to this size come back with the reply: a loss is read without another call.
_SMALL_BYTES = 1024


class LocalState(StepState):
    """The state of a step as one actor's process knows it.

    Attributes:
        failure: the first task that failed here.
        is_intact: whether the donated inputs are still here.
    """

    __slots__ = ("failure", "is_intact")

    def __init__(self) -> None:
        super().__init__(num_actors=1)
        self.failure: TaskFailure | None = None
        self.is_intact = True

    def report_dispatched(self, actor: int) -> None:
        super().report_dispatched(0)

    def wait_dispatched(self, actor: int) -> None:
        super().wait_dispatched(0)

    def report_ended(self, *, failure: TaskFailure | None, is_intact: bool) -> None:
        self.failure, self.is_intact = failure, is_intact
        super().report_ended(failure=failure, is_intact=is_intact)


def run_step_order(
    order: StepOrder,
    loaded: WorkerProgram,
    *,
    actor: Actor,
    cells: MutableMapping[int, ResultCell],
    unacknowledged: Unacknowledged,
    activity: ActivityFile,
    is_stopped: Callable[[], bool],
) -> StepReply:
    """Runs the list; results go into `cells`."""
    if any(isinstance(value, int) and value not in cells for value in order.inputs):
        # The step that should have filled it has failed.
        kept = tuple(value for value in order.inputs if isinstance(value, int) and value in cells)
        return StepReply(is_complete=False, is_intact=False, kept=kept)
    state = LocalState()
    outputs = {order.outputs + k: ResultCell(actor=actor.index, step=state) for k in range(len(loaded.list.outputs))}
    inputs = tuple(
        cells[value] if isinstance(value, int) else _place(value, loaded, number)
        for number, value in enumerate(order.inputs)
    )
    own = actor.index
    try:
        inboxes = _open_inboxes(order, loaded, activity, is_stopped)
    except TransferStopped:
        # The epoch has ended since its turn came, and the next has its transports already.
        return StepReply(is_complete=False, kept=tuple(value for value in order.inputs if isinstance(value, int)))
    channels: dict[tuple[int, int], Any] = {(source, own): inbox for source, inbox in inboxes.items()}
    channels |= {(own, target): Outbox(sender, order.step, unacknowledged) for target, sender in loaded.senders.items()}
    clock = ActorClock(waits_in_place=actor.platform == "cpu") if order.measure else None
    run = ListRun(
        actor_list=loaded.list,
        is_in_place=actor.is_in_place,
        fastest_s=[0.0] * len(loaded.program.calls),
        state=state,
        after=None,
        inputs=inputs,
        cells=tuple(outputs.values()),
        shared_cells=frozenset(),
        channels=channels,
        clock=clock,
        engine=None,
    )
    run(actor.feeder)
    actor.feeder.in_flight.settle_all()
    for inbox in inboxes.values():
        inbox.close()
    if clock is not None:
        clock.close()
    unacknowledged.tidy()
    return _reply(order, state, loaded, cells, outputs, clock, inboxes)


def _open_inboxes(
    order: StepOrder, loaded: WorkerProgram, activity: ActivityFile, is_stopped: Callable[[], bool]
) -> dict[int, Inbox]:
    return {
        source: Inbox(
            receiver,
            order.step,
            source,
            should_stop=is_stopped,
            activity=activity,
            ends={} if order.measure else None,
        )
        for source, receiver in loaded.receivers.items()
    }


def _reply(
    order: StepOrder,
    state: LocalState,
    loaded: WorkerProgram,
    cells: MutableMapping[int, ResultCell],
    outputs: dict[int, ResultCell],
    clock: ActorClock | None,
    inboxes: dict[int, Inbox],
) -> StepReply:
    donated = [
        value
        for item, value in zip(loaded.list.inputs, order.inputs, strict=True)
        if item.is_donated and isinstance(value, int)
    ]
    filled = {number: cell for number, cell in outputs.items() if cell.is_filled}
    is_complete = state.failure is None and len(filled) == len(outputs)
    kept = tuple(number for number in donated if not is_complete and not cells[number].is_deleted())
    for number in set(donated) - set(kept):
        del cells[number]
    if is_complete:
        cells.update(filled)
    return StepReply(
        is_complete=is_complete,
        is_intact=state.is_intact,
        failure=None if state.failure is None else describe_failure(state.failure),
        kept=kept,
        values=_small_values(filled) if is_complete else None,
        clock=None if clock is None else _clock_report(clock, inboxes),
    )


def _place(value: Any, loaded: WorkerProgram, number: int) -> Any:
    item = loaded.list.inputs[number]
    type_ = loaded.program.actors[loaded.actor].types[item.slot]
    return place(as_value(np.asarray(value), type_.dtype), item.sharding)


def _small_values(cells: dict[int, ResultCell]) -> dict[int, np.ndarray]:
    values = {}
    for number, cell in cells.items():
        array = cell.wait_filled()
        if array.nbytes <= _SMALL_BYTES and (array.is_fully_addressable or array.is_fully_replicated):
            values[number] = as_data(array)
    return values


def describe_failure(failure: TaskFailure) -> RemoteFailure:
    """A failure as text: exceptions of XLA, or of a user, need not survive a pickle."""
    return RemoteFailure(
        order=failure.order,
        task=failure.task,
        kind=type(failure.cause).__name__,
        message=error_text(failure.cause),
        traceback="".join(traceback.format_exception(failure.cause)),
    )


def _clock_report(clock: ActorClock, inboxes: dict[int, Inbox]) -> ClockReport:
    return ClockReport(
        dispatches=clock.dispatches,
        ends=clock.ends,
        arrivals={source: dict(inbox.ends or {}) for source, inbox in inboxes.items()},
    )
