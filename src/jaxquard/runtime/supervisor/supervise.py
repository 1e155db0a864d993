"""Runs a program until it is done: starts it, forwards signals, starts it again when it dies, keeps one log.

One thread waits for everything: output, signals, the end of the program and deadlines.
"""

import contextlib
import os
import select
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxquard.errors import PREEMPTED_EXIT_CODE
from jaxquard.runtime.supervisor.attempt import Attempt
from jaxquard.runtime.supervisor.process_tree import adopt_orphans
from jaxquard.runtime.supervisor.restart_policy import AttemptEnding, RestartLimits, decide_restart
from jaxquard.runtime.supervisor.run_log import RunLog
from jaxquard.runtime.supervisor.signal_queue import SignalQueue

LOG_NAME = "log.txt"
_CANNOT_START = 126
_GIVEN_UP = 1
_LONGEST_WAIT_S = 10.0
_TRACEBACK_S = 5.0
"""The time that a hanging program has to show where it hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run.

    Attributes:
        limits: limits on restarts.
        grace_s: the time to save and to end after SIGTERM or Ctrl-C.
        output_timeout_s: a program without output for so long hangs, and is started again; None for no limit.
        progress: a file or folder that changes when the program makes progress, such as that of its checkpoints.
    """

    limits: RestartLimits = field(default_factory=RestartLimits)
    grace_s: float = 30.0
    output_timeout_s: float | None = None
    progress: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        run_id: its name.
        log: the path of its log.
        endings: the endings of all attempts.
        exit_code: 0 done; 1 given up; 75 preempted; 130, 143 and the like, ended by a signal.
        reason: the reason of the last ending, in words.
    """

    run_id: str
    log: Path
    endings: tuple[AttemptEnding, ...]
    exit_code: int
    reason: str


def supervise(
    command: Sequence[str],
    *,
    run_id: str,
    folder: Path,
    options: RunOptions,
    on_event: Callable[[str], None],
    terminal: tuple[int, int] = (1, 2),
) -> RunResult:
    """Runs a program until it is done, is stopped or cannot go on. Call it in the main thread of a process of its own.

    Args:
        command: the words that start the program.
        run_id: the name of the run.
        folder: the folder of the run, which exists; the log is written there.
        options: limits.
        on_event: called with a line about each restart.
        terminal: the file descriptors to which stdout and stderr of the program go.

    Raises:
        BlockingIOError: a run of this name is under way in this folder.
        OSError: the log cannot be written.
    """
    adopt_orphans()
    with SignalQueue() as signals, contextlib.closing(RunLog(folder / LOG_NAME)) as log:
        run = _Run(command, run_id=run_id, folder=folder, options=options, on_event=on_event, signals=signals, log=log)
        return run.finish(terminal)


class _Run:
    """A run under way.

    Its state is the signal that shall end it, if one came, and the time at which the current attempt is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        run_id: str,
        folder: Path,
        options: RunOptions,
        on_event: Callable[[str], None],
        signals: SignalQueue,
        log: RunLog,
    ) -> None:
        self._command, self._options, self._on_event = command, options, on_event
        self._run_id, self._folder, self._signals, self._log = run_id, folder, signals, log
        self._stopped_by: signal.Signals | None = None
        self._forwarded: set[int] = set()
        self._kill_at_s: float | None = None
        self._silent_s = 0.0

    def finish(self, terminal: tuple[int, int]) -> RunResult:
        """Runs attempts until one is the last."""
        endings: list[AttemptEnding] = []
        while True:
            ending = self._attempt(len(endings), terminal)
            endings.append(ending)
            last = self._last_word(ending)
            if last is None:
                decision = decide_restart(endings, self._options.limits)
                if decision.delay_s is None:
                    last = (_GIVEN_UP, decision.reason)
                else:
                    self._report(decision.reason)
                    last = self._pause(decision.delay_s)
            if last is not None:
                code, reason = last
                self._log.note(f"the run ends with code {code}: {reason}")
                return RunResult(
                    run_id=self._run_id, log=self._log.path, endings=tuple(endings), exit_code=code, reason=reason
                )

    def _attempt(self, number: int, terminal: tuple[int, int]) -> AttemptEnding:
        start_s, progress = time.monotonic(), self._progress()
        self._forwarded, self._kill_at_s, self._silent_s = set(), None, 0.0
        try:
            attempt = Attempt(
                self._command,
                variables=self._variables(number),
                log=self._log,
                terminal=terminal,
                wakeup=self._signals.wakeup,
                grace_s=self._options.grace_s,
            )
        except OSError as error:
            self._log.note(f"attempt {number + 1} cannot start: {error}")
            return AttemptEnding(returncode=_CANNOT_START, time_s=0.0, error_line=str(error))
        self._log.note(f"attempt {number + 1}, process {attempt.pid}: {shlex.join(self._command)}")
        try:
            self._watch(attempt)
        finally:
            left = attempt.close(at_once=self._kill_at_s == 0)
        if left:
            self._report(f"processes that cannot be ended: {', '.join(str(process.pid) for process in left)}")
        return self._ending(attempt, number=number, time_s=time.monotonic() - start_s, progress=progress)

    def _watch(self, attempt: Attempt) -> None:
        """Waits for the end of the program; acts on signals and deadlines."""
        while not attempt.wait(self._next_wait_s(attempt)):
            for number in self._signals.take():
                self._pass_on(number, attempt)
            now_s, limit_s = time.monotonic(), self._options.output_timeout_s
            if self._kill_at_s is not None and now_s >= self._kill_at_s:
                attempt.send(signal.SIGKILL)
            elif self._kill_at_s is None and limit_s is not None and now_s - attempt.last_output_s >= limit_s:
                self._silent_s, self._kill_at_s = limit_s, now_s + _TRACEBACK_S
                self._log.note(f"no output for {limit_s:g} s; the program shows where it is, and is ended")
                attempt.send(signal.SIGABRT)

    def _next_wait_s(self, attempt: Attempt) -> float:
        deadlines = [self._kill_at_s] if self._kill_at_s is not None else []
        if self._options.output_timeout_s is not None and self._kill_at_s is None:
            deadlines.append(attempt.last_output_s + self._options.output_timeout_s)
        return max(0.0, min([_LONGEST_WAIT_S, *(deadline - time.monotonic() for deadline in deadlines)]))

    def _pass_on(self, number: signal.Signals, attempt: Attempt) -> None:
        """Forwards a signal. The first SIGINT or SIGTERM starts the grace time; a second SIGINT ends it."""
        if number in (signal.SIGINT, signal.SIGTERM):
            if self._stopped_by is number:
                if number is signal.SIGINT:
                    self._kill_at_s = 0
                return
            self._stopped_by = number
            self._kill_at_s = self._kill_at_s or time.monotonic() + self._options.grace_s
            self._report(f"{number.name}: the program has {self._options.grace_s:g} s to end")
        self._forwarded.add(number)
        attempt.send(number)

    def _pause(self, delay_s: float) -> tuple[int, str] | None:
        """Waits before a restart, or until a signal ends the run."""
        end_s = time.monotonic() + delay_s
        while (left_s := end_s - time.monotonic()) > 0:
            select.select([self._signals.wakeup], [], [], left_s)
            for number in self._signals.take():
                if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    return 128 + number, f"{number.name} before a restart"
        return None

    def _last_word(self, ending: AttemptEnding) -> tuple[int, str] | None:
        """Returns the exit code of the run and its reason, or None if the program failed and may be started again."""
        if self._stopped_by is not None:
            if self._stopped_by is signal.SIGTERM and ending.is_preempted:
                return PREEMPTED_EXIT_CODE, "preempted; the program saved its state"
            name = self._stopped_by.name
            return 128 + self._stopped_by, f"{name}; the program ended with {ending.cause}"
        if ending.is_done:
            return 0, "done"
        if ending.is_preempted:
            return PREEMPTED_EXIT_CODE, "preempted; the program saved its state"
        if -ending.returncode in self._forwarded:
            return 128 - ending.returncode, f"{ending.cause}, which was sent to this run"
        return None

    def _ending(self, attempt: Attempt, *, number: int, time_s: float, progress: set[object]) -> AttemptEnding:
        assert attempt.returncode is not None
        is_stable = time_s >= self._options.limits.stable_after_s
        ending = AttemptEnding(
            returncode=attempt.returncode,
            time_s=time_s,
            made_progress=is_stable if self._options.progress is None else bool(self._progress() - progress),
            error_line=attempt.error_line if attempt.returncode != 0 else "",
            silent_s=self._silent_s,
        )
        self._log.note(f"attempt {number + 1} ended after {time_s:.1f} s: {ending.cause}")
        return ending

    def _progress(self) -> set[object]:
        """Returns a set that progress adds to: the time of a file, the visible entries of a folder."""
        path = self._options.progress
        with contextlib.suppress(OSError):
            if path is not None and path.is_dir():
                with os.scandir(path) as entries:
                    return {(entry.name, entry.inode()) for entry in entries if not entry.name.startswith(".")}
            return set() if path is None else {path.stat().st_mtime_ns}
        return set()

    def _variables(self, number: int) -> dict[str, str]:
        return {
            "JAXQUARD_RUN_ID": self._run_id,
            "JAXQUARD_RUN_FOLDER": str(self._folder.absolute()),
            "JAXQUARD_RESTART": str(number),
        }

    def _report(self, text: str) -> None:
        self._log.note(text)
        self._on_event(text)
