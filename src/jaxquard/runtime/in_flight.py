"""The tasks that an actor has dispatched and not yet seen end, oldest first.

JAX dispatches ahead of the computation, and a computation that fails says so only when one looks at its
outputs. So each task leaves a witness here, an array that is ready when the task has ended, and bad if it
failed. Witnesses are looked at in order: the first bad one is the first task that failed on this actor.

How many tasks may be in flight is the actor's limit. On CPU it is one: with 50 multi-device computations
under way XLA:CPU was seen to wait for ever in a collective (it seems that its threads run out), and a
one-device task has ended when its call returns. One in flight also means that any output can be the witness,
since nothing donates it before it was looked at. Elsewhere calls have an output of their own for it (see
`compile_calls`), which nothing donates and which holds no memory to speak of.
"""

from collections import deque
from typing import Any

import jax

from jaxquard import _jax_compat
from jaxquard.runtime.step_state import Failure, StepState


class ActorReport:
    """What one actor will say about one step: its first failure, and whether its inputs are intact."""

    __slots__ = ("_actor", "_state", "failure", "is_intact")

    def __init__(self, *, actor: int, state: StepState) -> None:
        self._actor = actor
        self._state = state
        self.failure: Failure | None = None
        self.is_intact = True

    def fail(self, *, order: int, task: str, cause: BaseException) -> None:
        if self.failure is None:
            self.failure = Failure(actor=self._actor, order=order, task=task, cause=cause)

    def end(self) -> None:
        self._state.report_ended(failure=self.failure, is_intact=self.is_intact)


class InFlight:
    """A queue of witnesses, used by one actor's thread alone."""

    __slots__ = ("_limit", "_waiting")

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[ActorReport, int, str, jax.Array | None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, report: ActorReport, order: int, task: str, witness: jax.Array) -> None:
        self._waiting.append((report, order, task, witness))

    def add_end(self, report: ActorReport) -> None:
        """Everything that was added for a step before has ended when this is settled."""
        self._waiting.append((report, -1, "", None))

    def make_room(self) -> None:
        """Settles what has ended, and waits for the oldest while there are as many as the limit."""
        waiting: Any = self._waiting
        while waiting and (len(waiting) >= self._limit or waiting[0][3] is None or _jax_compat.is_ready(waiting[0][3])):
            self.settle_oldest()

    def settle_all(self) -> None:
        while self._waiting:
            self.settle_oldest()

    def settle_oldest(self) -> None:
        """Waits for the oldest task and reports it if it failed."""
        report, order, task, witness = self._waiting.popleft()
        if witness is None:
            report.end()
            return
        try:
            witness.block_until_ready()
        except Exception as cause:
            report.fail(order=order, task=task, cause=cause)
