"""Runs a process's transfers one after another on a thread, for a transport where both sides must meet.

All transfers of all processes have one order: by step, then by their place in the program. Each process runs
its own in that order and none twice at a time. A transfer happens in four moves:

    sender: the value is computed; OFFER ->
                                      <- GRANT: it is the receiver's turn and there is room
    both: the collective, which blocks the devices of both until it is done

This cannot deadlock. Take the first transfer, in the order of all, that is not done. Its sender has done all
before it, and its actor's list can only wait for messages before it, so the value comes and is offered. Its receiver
has done all before it too, so it is the receiver's turn; and there is room, or its actor takes what fills the room, or
its actor waits for a message that is not before this one, which counts as room. So it is granted, and
as a sender with an offer out is in no other collective, both enter. Without the signals a receiver that
came early would hold up its own computations, which share the devices, until the sender came.

A step that was abandoned leaves no one waiting inside a collective: what an actor has not asked for when it
begins another step, or closes, is passed over, and offers of it are refused. Only a process that ends between
a grant and the end of the collective takes its partner with it, and then all must be started again.
"""

import math
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxquard.runtime.transports.collective.pair_exchange import Exchange, Parts
from jaxquard.runtime.transports.collective.signals import Signal, SignalKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One message of a program that this process sends or receives."""

    order: int
    peer: int
    is_send: bool
    size_bytes: int
    exchange: Exchange


class TransferState:
    """The progress of one transfer in one step; `is_done` is set last."""

    __slots__ = ("error", "is_asked", "is_done", "is_offered", "parts", "transfer")

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.parts: Parts | None = None
        self.is_asked = False
        self.is_offered = False
        self.is_done = False
        self.error: BaseException | None = None

    def is_taken(self) -> bool:
        return self.is_done


class Round:
    """The transfers of one step, in order; `position` is the next."""

    def __init__(self, program_id: int, step: int, transfers: tuple[Transfer, ...]) -> None:
        self.program_id = program_id
        self.step = step
        self.states = tuple(TransferState(transfer) for transfer in transfers)
        self.by_order = {state.transfer.order: state for state in self.states}
        self.position = 0


class TransferThread:
    """Runs rounds in the order in which they are given."""

    def __init__(
        self, send_signal: Callable[[int, Signal], None], *, window: tuple[int, int], on_end: Callable[[], None]
    ) -> None:
        """Starts the thread.

        Args:
            send_signal: sends a signal to an actor.
            window: the maximum number of messages, and of bytes, that may arrive before they are asked for.
            on_end: called when it is closed and no peer counts on it any more.
        """
        self._send_signal = send_signal
        self._on_end = on_end
        self._window_messages, self._window_bytes = window
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._rounds: deque[Round] = deque()
        self._offers: set[tuple[int, Signal]] = set()
        self._early: list[TransferState] = []
        self._lost: set[int] = set()
        self._passed: tuple[float, int] = (-1, 0)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="jaxquard-transfers", daemon=True)
        self._thread.start()

    def add_round(self, round_: Round) -> None:
        self._events.put(lambda: self._begin(round_))

    def wake(self) -> None:
        """Says that a transfer was given its parts, or was asked for."""
        self._events.put(_nothing)

    def signal(self, peer: int, signal: Signal) -> None:
        self._events.put(lambda: self._take_signal(peer, signal))

    def lose(self, peer: int) -> None:
        self._events.put(lambda: self._lost.add(peer))

    def close(self) -> None:
        """Refuses the offers of others; keeps its own offer until it is answered."""
        self._events.put(self._begin_close)

    def _run(self) -> None:
        while not self._is_closing or self._has_offered():
            self._events.get()()
            while self._rounds and not self._is_closing and self._advance(self._rounds[0]):
                pass
            self._refuse_old_offers()
        self._on_end()

    def _begin_close(self) -> None:
        self._is_closing = True
        self._passed = (math.inf, 0)

    def _has_offered(self) -> bool:
        state = self._rounds[0].states[self._rounds[0].position] if self._rounds else None
        return state is not None and state.is_offered and not state.is_done and state.transfer.peer not in self._lost

    def _begin(self, round_: Round) -> None:
        self._rounds.append(round_)
        # What the actor has not asked for by now it never will.
        self._early.clear()

    def _advance(self, round_: Round) -> bool:
        """Advances the next transfer as far as it can go now; returns True if it is worth looking again."""
        if round_.position == len(round_.states):
            self._rounds.popleft()
            self._passed = (round_.step + 1, 0)
            return True
        state = round_.states[round_.position]
        is_over = len(self._rounds) > 1
        if state.transfer.peer in self._lost and not state.is_done:
            state.error = ConnectionError(f"a process of actor {state.transfer.peer} has ended")
            state.is_done = True
        if state.is_done or (is_over and not state.is_asked):
            round_.position += 1
            self._passed = (round_.step, state.transfer.order + 1)
            return True
        return self._advance_send(round_, state) if state.transfer.is_send else self._advance_receive(round_, state)

    def _advance_send(self, round_: Round, state: TransferState) -> bool:
        if state.is_asked and not state.is_offered:
            state.is_offered = True
            state.error = _catch(jax.block_until_ready, state.parts)
            if state.error is not None:
                # The receiver's step is lost too; the controller stops it.
                state.is_done = True
                return True
            self._signal_about(SignalKind.OFFER, round_, state)
        return False

    def _advance_receive(self, round_: Round, state: TransferState) -> bool:
        offer = (state.transfer.peer, Signal(SignalKind.OFFER, round_.step, round_.program_id, state.transfer.order))
        if offer not in self._offers or not self._has_room(round_, state):
            return False
        self._offers.remove(offer)
        self._signal_about(SignalKind.GRANT, round_, state)
        self._early.append(state)
        self._exchange(state, None)
        return True

    def _has_room(self, round_: Round, state: TransferState) -> bool:
        if any(later.is_asked and not later.transfer.is_send for later in round_.states[round_.position :]):
            return True
        self._early = [early for early in self._early if not early.is_asked]
        used_bytes = sum(early.transfer.size_bytes for early in self._early)
        return not self._early or (
            len(self._early) < self._window_messages and used_bytes + state.transfer.size_bytes <= self._window_bytes
        )

    def _exchange(self, state: TransferState, parts: Parts | None) -> None:
        def run() -> None:
            result = jax.block_until_ready(state.transfer.exchange(parts))
            state.parts = None if state.transfer.is_send else result

        state.error = _catch(run)
        state.is_done = True

    def _take_signal(self, peer: int, signal: Signal) -> None:
        if signal.kind == SignalKind.OFFER:
            self._offers.add((peer, signal))
            return
        # A sender waits for the answer before it goes on, so it is about the current transfer.
        round_ = self._rounds[0]
        state = round_.states[round_.position]
        assert (round_.step, round_.program_id, state.transfer.order, state.transfer.peer) == (*signal[1:], peer)
        if signal.kind == SignalKind.GRANT:
            self._exchange(state, state.parts)
        else:
            state.parts = None
            state.is_done = True

    def _refuse_old_offers(self) -> None:
        passed = max(self._passed, (self._rounds[0].step, 0)) if self._rounds else self._passed
        for peer, offer in [item for item in self._offers if (item[1].step, item[1].order) < passed]:
            self._offers.remove((peer, offer))
            self._send_signal(peer, offer._replace(kind=SignalKind.REFUSE))

    def _signal_about(self, kind: SignalKind, round_: Round, state: TransferState) -> None:
        self._send_signal(state.transfer.peer, Signal(kind, round_.step, round_.program_id, state.transfer.order))


def _catch(function: Callable[..., Any], *args: Any) -> BaseException | None:
    try:
        function(*args)
    except Exception as error:
        return error
    return None


def _nothing() -> None:
    pass
