"""Signals to the supervisor, in the order in which they came, for a loop that waits on file descriptors."""

import contextlib
import os
import signal
from collections import deque
from types import FrameType
from typing import Any

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class SignalQueue:
    """Collects the signals that are to be forwarded; `SIGCHLD` only wakes the loop.

    A signal that this process was started to ignore, as `nohup` does with SIGHUP, stays ignored, here and in the
    program.

    Attributes:
        wakeup: a file descriptor that is readable when a signal has come.
    """

    def __init__(self) -> None:
        self._arrived: deque[signal.Signals] = deque()
        self._before: dict[signal.Signals, Any] = {}
        self.wakeup, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> "SignalQueue":
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGCHLD):
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self.wakeup)
        os.close(self._write)

    def take(self) -> list[signal.Signals]:
        """Returns the signals that have come since the last call."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, 4096):
                pass
        taken = []
        while self._arrived:
            taken.append(self._arrived.popleft())
        return taken

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._arrived.append(signal.Signals(number))
