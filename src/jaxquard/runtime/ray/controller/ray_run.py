"""One step under way on the processes of the actors.

Its timeline is on the controller's clock. Processes on one kernel share its monotonic clock. Another host's is compared
as NTP does it: the process is asked for its time, and that was in the middle between question and answer. The quickest
of several rounds counts, and its round trip bounds the error. Clocks drift, so this is done for every timeline.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from jaxquard.ir.program import Program, Send
from jaxquard.ir.timeline import Timeline
from jaxquard.runtime.program.timings import make_timeline
from jaxquard.runtime.ray.client.ray_actor import WorkerError
from jaxquard.runtime.ray.controller.epochs import Epoch
from jaxquard.runtime.ray.controller.load_program import LoadedOnRay
from jaxquard.runtime.ray.controller.ray_cell import RayCell
from jaxquard.runtime.ray.controller.worker_group import WorkerGroup, WorkerProcess
from jaxquard.runtime.ray.messages import ClockReport, RemoteFailure, StepReply
from jaxquard.runtime.ray.worker.self_report import own_boot
from jaxquard.runtime.remote_array import RemoteArray
from jaxquard.runtime.step_state import ActorPlace, StepState, TaskFailure, error_lines

_NUM_ROUNDS = 8


def compare_clocks(group: WorkerGroup, workers: Iterable[WorkerProcess]) -> dict[WorkerProcess, float]:
    """Finds, for each process, what to add to its clock to get this process's."""
    here = own_boot()
    return {
        worker: 0.0 if worker.info is not None and worker.info.boot == here else _find_offset(group, worker)
        for worker in workers
    }


def _find_offset(group: WorkerGroup, worker: WorkerProcess) -> float:
    best_s, offset_s = float("inf"), 0.0
    for _ in range(_NUM_ROUNDS):
        asked_s = time.perf_counter()
        (heartbeat,) = group.gather([worker.handle.heartbeat()])
        answered_s = time.perf_counter()
        if answered_s - asked_s < best_s:
            best_s, offset_s = answered_s - asked_s, (asked_s + answered_s) / 2 - heartbeat.time_s
    return offset_s


# A step that is given up, because of a failure elsewhere, is never the first to blame.
_LAST = 10**9


class RemoteCause(Exception):
    """A failure in, or of, another process; its traceback there is a note."""


class RayRun:
    """A step that was sent to all actors.

    Attributes:
        cells: for each actor, one cell for each slot among its outputs, in their order.
        inputs: for each actor the cells that it was given, held until it has answered.
        epoch: the one in which it was sent.
    """

    def __init__(
        self,
        *,
        loaded: LoadedOnRay,
        state: StepState,
        cells: tuple[tuple[RayCell, ...], ...],
        group: WorkerGroup,
        epoch: Epoch,
    ) -> None:
        self.cells, self.state = cells, state
        self.inputs: tuple[tuple[RayCell, ...], ...] = ()
        self.epoch = epoch
        self._loaded, self._group = loaded, group
        self._replies: list[list[tuple[WorkerProcess, StepReply]]] = [[] for _ in cells]

    def results(self) -> tuple[RemoteArray, ...]:
        """Returns the flat results, each joined from its parts and copies."""
        return self._loaded.results(self.cells)

    def is_done(self) -> bool:
        """Returns True once every actor has answered, or the step has failed."""
        return self.state.is_finished

    def wait(self) -> None:
        """Waits until every task has ended.

        Raises:
            ActorFailed: if one failed, or an actor was lost.
        """
        self.state.wait_finished()
        self.state.raise_error()

    def timeline(self) -> Timeline:
        """Waits for the step and returns when everything ran, on the controller's clock."""
        self.wait()
        firsts = [min(replies, key=lambda item: item[0].rank) for replies in self._replies]
        offsets_s = compare_clocks(self._group, [worker for worker, _ in firsts])
        clocks = []
        for worker, reply in firsts:
            assert reply.clock is not None, "the step was not measured: pass measure=True to execute"
            clocks.append(_shifted(reply.clock, offsets_s[worker]))
        return make_timeline(self._loaded.program, _with_arrivals(self._loaded.program, clocks))

    def take_reply(self, worker: WorkerProcess, reply: StepReply) -> None:
        """Takes the reply of one process; when all of an actor have replied, its cells are filled."""
        replies = self._replies[worker.actor]
        replies.append((worker, reply))
        if len(replies) < len(self._group.workers[worker.actor]):
            return
        by_rank = [found for _, found in sorted(replies, key=lambda item: item[0].rank)]
        kept = set.intersection(*(set(found.kept) for found in by_rank))
        for cell in self.inputs[worker.actor]:
            if cell.number in kept:
                cell.give_back()
        if all(found.is_complete for found in by_rank):
            values = by_rank[0].values or {}
            for cell in self.cells[worker.actor]:
                cell.fill(values.get(cell.number))
        self.state.report_dispatched(worker.actor)
        self.state.report_ended(
            failure=self._find_failure(replies), is_intact=all(found.is_intact for found in by_rank)
        )
        self.inputs = tuple(() if actor == worker.actor else cells for actor, cells in enumerate(self.inputs))

    def give_up(self, failure: TaskFailure, *, num_reached: int) -> None:
        """Fails a step that could not be sent to all: actors from `num_reached` on keep their inputs."""
        for cells in self.inputs[num_reached:]:
            for cell in cells:
                cell.give_back()
        self.state.fail_now(failure)

    def _find_failure(self, replies: Sequence[tuple[WorkerProcess, StepReply]]) -> TaskFailure | None:
        failed = [(reply.failure, worker) for worker, reply in replies if reply.failure is not None]
        if failed:
            found, worker = min(failed, key=lambda item: item[0].order)
            return find_failure(found, worker)
        if all(reply.is_complete for _, reply in replies):
            return None
        cause = RemoteCause("the step was given up, as another one had failed")
        place = ActorPlace(host=replies[0][0].host)
        return TaskFailure(actor=replies[0][0].actor, order=_LAST, task="(none)", cause=cause, place=place)


def describe_error(error: BaseException) -> StepReply:
    """Turns an error of the call itself, which no step is meant to raise, into a reply."""
    kind = type(getattr(error, "cause", None) or error).__name__
    text = error.traceback if isinstance(error, WorkerError) else str(error)
    message = error_lines(error.cause if isinstance(error, WorkerError) else error)[-1]
    failure = RemoteFailure(order=-1, task="(starting the step)", kind=kind, message=message, traceback=text)
    return StepReply(is_complete=False, is_intact=False, failure=failure)


def find_failure(found: RemoteFailure, worker: WorkerProcess) -> TaskFailure:
    """Turns a failure that a process reports into one of the controller."""
    cause = RemoteCause(found.message or found.kind)
    cause.add_note(found.traceback)
    return TaskFailure(
        actor=worker.actor,
        order=found.order,
        task=found.task,
        cause=cause,
        place=ActorPlace(host=worker.host, log=found.log),
    )


def _shifted(clock: ClockReport, offset_s: float) -> ClockReport:
    return ClockReport(
        dispatches={position: time_s + offset_s for position, time_s in clock.dispatches.items()},
        ends={position: time_s + offset_s for position, time_s in clock.ends.items()},
        arrivals={
            source: {number: time_s + offset_s for number, time_s in times.items()}
            for source, times in clock.arrivals.items()
        },
    )


def _with_arrivals(program: Program, clocks: Sequence[ClockReport]) -> list[Any]:
    """Sets the end of each transfer to when its receiver had it."""
    for source, (actor, clock) in enumerate(zip(program.actors, clocks, strict=True)):
        numbers: dict[int, int] = {}
        for position, instruction in enumerate(actor.instructions):
            if isinstance(instruction, Send):
                number = numbers.get(instruction.target, 0)
                numbers[instruction.target] = number + 1
                arrivals = clocks[instruction.target].arrivals.get(source, {})
                if number in arrivals:
                    clock.ends[position] = max(arrivals[number], clock.dispatches[position])
    return list(clocks)
