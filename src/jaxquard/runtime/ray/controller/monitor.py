"""Watches over the actors' processes: signs of life, deaths, and messages that got stuck.

A thread asks every process for a sign, again and again. One that is silent for longer than the limit is frozen, and
is killed, so that it does no harm when it wakes. A healthy process answers from a thread of its own, also while it
compiles or computes. Time in which this process itself was stopped does not count.

A message is stuck if it was sent, and waited for, for several times the limit, as a slow network takes its time: the
transport has lost it.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxquard.runtime.ray.cluster.import_ray import import_ray
from jaxquard.runtime.ray.controller.worker_group import Crew, Member
from jaxquard.runtime.ray.messages import Sign

# How many signs are asked for within the limit.
_SIGNS_PER_LIMIT = 10
_LONGEST_INTERVAL_S = 1.0
_SHORTEST_INTERVAL_S = 0.05
# How many limits a message may be on its way.
_STUCK_LIMITS = 6
# Rounds in a row that may go wrong before Ray counts as gone.
_MOST_ERRORS = 3


_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pulse:
    """What is known of one process: the sign asked for, how long it has been silent, its last sign."""

    reference: Any = None
    silent_s: float = 0.0
    sign: Sign | None = None


class Monitor:
    """A thread that calls `on_lost(member, how)` for every process that dies, freezes or loses a message.

    Args:
        limit_s: how long a process may be silent.
        on_tick: called between rounds, for small things to be done now and then.
    """

    def __init__(
        self, crew: Crew, *, limit_s: float, on_lost: Callable[[Member, str], None], on_tick: Callable[[], None]
    ) -> None:
        self._crew, self._on_lost, self._on_tick = crew, on_lost, on_tick
        self.limit_s = limit_s
        self._interval_s = max(min(limit_s / _SIGNS_PER_LIMIT, _LONGEST_INTERVAL_S), _SHORTEST_INTERVAL_S)
        self._pulses: dict[Member, _Pulse] = {}
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jaxquard monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def last_note(self, member: Member) -> str:
        """What a process said last that it was doing."""
        pulse = self._pulses.get(member)
        return "" if pulse is None or pulse.sign is None else pulse.sign.note

    def await_loss(self) -> None:
        """Waits until every process has given a new sign of life, or an actor is known to be lost."""
        ray = import_ray()
        signs = [member.handle.sign() for member in self._crew.living()]
        end_s = time.monotonic() + self._crew.loss_limit_s
        while signs and not self._crew.losses and time.monotonic() < end_s:
            done, _ = ray.wait(signs, num_returns=len(signs), timeout=0.02)
            signs = [sign for sign in signs if sign not in done or not _is_answered(sign)]

    def _run(self) -> None:
        before_s, num_errors = time.monotonic(), 0
        while not self._is_closing.wait(self._interval_s):
            now_s = time.monotonic()
            # Longer than that, and it was this process that did not run.
            elapsed_s = min(now_s - before_s, 2 * self._interval_s)
            before_s = now_s
            try:
                self._look_around(elapsed_s)
                num_errors = 0
            except Exception as error:
                num_errors += 1
                if num_errors >= _MOST_ERRORS and not self._is_closing.is_set():
                    self._give_up(error)
            except SystemExit:
                return  # So Ray ends threads that call it while it is shut down.

    def _look_around(self, elapsed_s: float) -> None:
        members = self._crew.living()
        self._pulses = {member: self._pulses.get(member, _Pulse()) for member in members}
        errors = []
        for member in members:
            try:
                self._look_after(member, self._pulses[member], elapsed_s)
            except Exception as error:
                errors.append(error)
        if errors and len(errors) == len(members):
            raise errors[0]
        self._find_stuck(members)
        self._on_tick()

    def _give_up(self, error: Exception) -> None:
        """Ray itself does not answer: nobody can be reached any more."""
        _log.warning("Ray does not answer", exc_info=error)
        for member in self._crew.living():
            self._on_lost(member, f"cannot be reached, as Ray does not answer ({type(error).__name__})")

    def _look_after(self, member: Member, pulse: _Pulse, elapsed_s: float) -> None:
        ray = import_ray()
        if pulse.reference is None:
            pulse.reference = member.handle.sign()
            return
        done, _ = ray.wait([pulse.reference], timeout=0)
        if not done:
            self._note_silence(member, pulse, elapsed_s)
            return
        reference, pulse.reference = pulse.reference, None
        try:
            pulse.sign = ray.get(reference)
        except ray.exceptions.RayTaskError:
            _log.warning("actor %d could not describe itself", member.actor, exc_info=True)  # But it lives.
        except ray.exceptions.ActorUnavailableError:
            self._note_silence(member, pulse, elapsed_s)
            return
        except ray.exceptions.RayError as error:
            self._on_lost(member, describe_death(error))
            return
        pulse.silent_s = 0.0
        pulse.reference = member.handle.sign()

    def _note_silence(self, member: Member, pulse: _Pulse, elapsed_s: float) -> None:
        if not member.is_started:
            return
        pulse.silent_s += elapsed_s
        if pulse.silent_s > self.limit_s:
            self._on_lost(member, f"has given no sign of life for {pulse.silent_s:.0f} s")

    def _find_stuck(self, members: list[Member]) -> None:
        for member in members:
            sign = self._pulses[member].sign
            if sign is None or sign.report is None:
                continue
            for waiting in sign.report.waiting:
                if self._stuck_s(waiting, member) > _STUCK_LIMITS * self.limit_s:
                    self._on_lost(
                        member,
                        f"has waited {waiting.age_s:.0f} s for message {waiting.number} that actor {waiting.peer} sent",
                    )
                    return

    def _stuck_s(self, waiting: Any, member: Member) -> float:
        """For how long a message has been both sent and waited for; 0 if it has not been sent."""
        for other in self._crew.members[waiting.peer]:
            sign = self._pulses[other].sign if other in self._pulses else None
            if other.rank != member.rank or sign is None or sign.report is None:
                continue
            for sent in sign.report.sent:
                is_out = (sent.step, sent.number) >= (waiting.step, waiting.number)
                if sent.peer == member.actor and sent.program_id == waiting.program_id and is_out:
                    return min(waiting.age_s, sent.age_s)
        return 0.0


def describe_death(error: BaseException) -> str:
    """Why Ray says that a process has died, in a few words."""
    if "OutOfMemory" in type(error).__name__ or "running low on memory" in str(error):
        return "was killed because its host ran out of memory"
    return "has died"


def _is_answered(sign: Any) -> bool:
    ray = import_ray()
    try:
        ray.get(sign)
    except ray.exceptions.RayTaskError:
        return True
    except ray.exceptions.RayError:
        return False
    return True
