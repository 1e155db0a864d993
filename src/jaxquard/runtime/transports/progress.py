"""The progress of a transport's channels, which any thread can read.

A message counts as sent, for a watchdog, when its values are computed: before that it cannot arrive, however
long the computation takes, and nothing is wrong.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from jaxquard.runtime.transports.protocol import MessageStatus, TransportReport


class SenderProgress:
    """The progress of a sender."""

    __slots__ = ("_last", "_lock", "_unfinished", "count", "peer", "program_id")

    def __init__(self, *, peer: int, program_id: int) -> None:
        self.peer = peer
        self.program_id = program_id
        self.count = 0
        self._lock = threading.Lock()
        self._unfinished: deque[tuple[int, int, Sequence[Any]]] = deque()
        self._last: tuple[int, int, float] | None = None

    def note_sent(self, step: int, number: int, parts: Sequence[Any]) -> None:
        with self._lock:
            self._unfinished.append((step, number, parts))
            self.count += 1
            self._look()

    def status(self) -> MessageStatus | None:
        with self._lock:
            self._look()
            return _status(self.peer, self.program_id, self._last)

    def _look(self) -> None:
        """Drops messages that are computed; one that was donated since then was computed too."""
        while self._unfinished:
            step, number, parts = self._unfinished[0]
            if not all(part.is_deleted() or part.is_ready() for part in parts):
                return
            self._unfinished.popleft()
            self._last = (step, number, time.monotonic())


class ReceiverProgress:
    """The progress of a receiver; only its own thread writes."""

    __slots__ = ("_waiting", "count", "peer", "program_id")

    def __init__(self, *, peer: int, program_id: int) -> None:
        self.peer = peer
        self.program_id = program_id
        self.count = 0
        self._waiting: tuple[int, int, float] | None = None

    def begin_wait(self, step: int, number: int) -> None:
        self._waiting = (step, number, time.monotonic())

    def end_wait(self) -> None:
        self._waiting = None

    def note_received(self) -> None:
        self.count += 1

    def status(self) -> MessageStatus | None:
        return _status(self.peer, self.program_id, self._waiting)


class TransportProgress:
    """All ends of a transport."""

    def __init__(self) -> None:
        self._senders: list[SenderProgress] = []
        self._receivers: list[ReceiverProgress] = []

    def add_sender(self, *, peer: int, program_id: int) -> SenderProgress:
        self._senders.append(SenderProgress(peer=peer, program_id=program_id))
        return self._senders[-1]

    def add_receiver(self, *, peer: int, program_id: int) -> ReceiverProgress:
        self._receivers.append(ReceiverProgress(peer=peer, program_id=program_id))
        return self._receivers[-1]

    def report(self) -> TransportReport:
        senders, receivers = list(self._senders), list(self._receivers)
        sent, waiting = [end.status() for end in senders], [end.status() for end in receivers]
        return TransportReport(
            sent=tuple(mark for mark in sent if mark is not None),
            waiting=tuple(mark for mark in waiting if mark is not None),
            num_sent=_sum_counts(senders),
            num_received=_sum_counts(receivers),
        )


def _status(peer: int, program_id: int, last: tuple[int, int, float] | None) -> MessageStatus | None:
    if last is None:
        return None
    step, number, since_s = last
    return MessageStatus(peer=peer, program_id=program_id, step=step, number=number, age_s=time.monotonic() - since_s)


def _sum_counts(ends: Sequence[SenderProgress | ReceiverProgress]) -> dict[int, int]:
    return {peer: sum(end.count for end in ends if end.peer == peer) for peer in {end.peer for end in ends}}
