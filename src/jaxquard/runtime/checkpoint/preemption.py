"""Notices SIGTERM, which Slurm, Kubernetes and spot instances send before they take a host away.

Before the first step there is nothing to save, and the program ends at once, with its `finally` blocks. After it, the
signal only sets a flag, and the end of a step acts on it. A second SIGTERM changes nothing, as a supervisor and a
process group may both send one; SIGKILL still ends the program.
"""

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

from jaxquard.errors import Preempted


class PreemptionFlag:
    """A handler of SIGTERM; in another thread than the main one there is none, and the flag stays down."""

    def __init__(self) -> None:
        self.is_set = False
        self.can_wait = False
        self._earlier: Any = None
        self._is_installed = False
        self.install()

    def install(self) -> None:
        """Installs the handler, again if another library has installed its own since."""
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.getsignal(signal.SIGTERM)
        if current != self._handle:
            self._earlier = signal.signal(signal.SIGTERM, self._handle)
        self._is_installed = True

    def remove(self) -> None:
        """Puts the earlier handler back; in another thread, where that is not possible, calls it from now on.

        A program that was preempted is on its way out, and has an exit code that says so: it ignores what else comes.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_installed and is_main and signal.getsignal(signal.SIGTERM) == self._handle:
            earlier = self._earlier if self._earlier is not None else signal.SIG_DFL
            signal.signal(signal.SIGTERM, signal.SIG_IGN if self.is_set else earlier)
        self._is_installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_installed:
            self._leave_to_earlier(number, frame)
            return
        is_second, self.is_set = self.is_set, True
        if not self.can_wait and not is_second:  # The second one would break into the `finally` blocks.
            raise Preempted
        if callable(self._earlier):
            with contextlib.suppress(SystemExit):  # Ray's handler ends the program, which would save nothing.
                self._earlier(number, frame)

    def _leave_to_earlier(self, number: int, frame: FrameType | None) -> None:
        """Does what would have happened without this handler. Handlers run in the main thread."""
        earlier = signal.SIG_DFL if self._earlier is None else self._earlier
        is_current = signal.getsignal(number) == self._handle  # Else a later handler has called it, and decides.
        if is_current:
            signal.signal(number, earlier)
        if callable(earlier):
            earlier(number, frame)
        elif is_current and earlier == signal.SIG_DFL:
            os.kill(os.getpid(), number)
