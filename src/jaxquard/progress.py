"""Progress of long calls on stderr: bars on a terminal, and a line about every 15 s anywhere else (nohup, Slurm, CI).

The library shows it by `show_progress`, commands by `ProgressBars`; nothing else of the library prints.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY_S = 15.0
# What ends sooner shows no bar.
_QUIET_S = 3.0
# The columns before the words beside a bar; with more words, rich would leave out the bar.
_BAR_WIDTH = 70

# Called with (done, total, what is done).
Move = Callable[[int, int, str], None]


@contextlib.contextmanager
def show_progress(progress: bool | Move, label: str) -> Iterator[Move]:
    """Yields the callback that reports how far a call is.

    Args:
        progress: True shows it on stderr, unless the call ends within seconds; False does not; or a callback.
        label: the call in a word.
    """
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield lambda done, total, name: None
    else:
        with ProgressBars(quiet_s=_QUIET_S) as bars:
            yield bars.add(label)


class ProgressBars:
    """Bars one below the other, for the pieces of a long command.

    A callback `(done, total, name)` moves a bar; the name of what was done last stands beside it.

    Args:
        quiet_s: the bars are shown after so many seconds; lines come after 15 s in any case.
    """

    def __init__(self, *, quiet_s: float = 0.0) -> None:
        self._progress = _make_progress()
        self._lines = None if self._progress.console.is_terminal else ProgressLines()
        self._start = threading.Timer(quiet_s, self._progress.start)
        self._start.daemon = True

    def add(self, label: str, *, name: str = "") -> Move:
        """Adds a bar and returns the callback that moves it; its clock starts with the first call, or with a name."""
        if self._lines is not None:
            return self._lines.add(label, name=name)
        bar = self._progress.add_task(label, total=None, name=name, start=bool(name))

        def move(done: int, total: int, name: str) -> None:
            self._progress.start_task(bar)
            room = max(self._progress.console.width - _BAR_WIDTH, 10)
            self._progress.update(bar, completed=done, total=total, name=shorten(name, room))

        return move

    def __enter__(self) -> "ProgressBars":
        if self._lines is not None:
            self._lines.start()
        elif self._start.interval > 0:
            self._start.start()
        else:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lines is not None:
            self._lines.stop()
            return
        self._start.cancel()
        if self._start.is_alive():
            self._start.join()
        was_shown = self._progress.live.is_started
        self._progress.stop()
        if was_shown:
            self._progress.console.print()


def _make_progress() -> "Progress":
    # Loaded when it is asked for: most calls end before anything is shown.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[name]}"),
        console=Console(stderr=True, highlight=False),
    )


@dataclass(slots=True)
class _Piece:
    """A piece of the work, as it was last reported; -1 of -1 before that."""

    label: str
    name: str
    done: int = -1
    total: int = -1

    def __str__(self) -> str:
        counts = f" {self.done}/{self.total}" if self.total >= 0 else ""
        return f"{self.label}{counts}{f' ({self.name})' if self.name else ''}"


@dataclass(slots=True)
class ProgressLines:
    """Says where the work stands, about every 15 s: `2 min 15 s: pricing segments 12/90 (segment 0, rows)`.

    A thread looks at the clock, as one step of the work may take minutes. Work of less than 15 s prints nothing.

    Attributes:
        wait: waits so many seconds, or less if the work is done, and says whether it is.
        clock: the time in seconds.
    """

    wait: Callable[[float], bool] | None = None
    clock: Callable[[], float] = time.monotonic
    _pieces: list[_Piece] = field(default_factory=list)
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def add(self, label: str, *, name: str = "") -> Move:
        piece = _Piece(label=label, name=name)
        self._pieces.append(piece)

        def move(done: int, total: int, name: str) -> None:
            piece.done, piece.total, piece.name = done, total, name

        return move

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="jaxquard progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def run(self) -> None:
        """Prints lines until the work is done."""
        wait, start_s = self.wait or self._done.wait, self.clock()
        while not wait(EVERY_S):
            line = self._line()
            if line:
                sys.stderr.write(f"{_in_words(self.clock() - start_s)}: {line}\n")
                sys.stderr.flush()

    def _line(self) -> str:
        """The pieces that have begun and are not done; without any, the last that was done."""
        begun = [piece for piece in self._pieces if piece.total >= 0 or piece.name]
        running = [piece for piece in begun if piece.total < 0 or piece.done < piece.total]
        return "; ".join(map(str, running or begun[-1:]))


def _in_words(time_s: float) -> str:
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def shorten(text: str, room: int) -> str:
    """The beginning of a text: beside more words than there is room for, rich would leave out the bar."""
    return text if len(text) <= room else text[: room - 1].rstrip(" ;,") + "…"
