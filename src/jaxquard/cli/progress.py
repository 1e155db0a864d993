"""A progress bar on stderr; nothing at all when that is not a terminal."""

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class ProgressBars:
    """Bars one below the other, for the pieces of a long command.

    A callback `(done, total, name)` moves a bar; the name of what was done last stands beside it.
    """

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[name]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def add(self, label: str, *, name: str = "") -> Callable[[int, int, str], None]:
        """A new bar, and the callback that moves it; its clock starts with the first call, or with a name."""
        bar = self._progress.add_task(label, total=None, name=name, start=bool(name))

        def move(done: int, total: int, name: str) -> None:
            self._progress.start_task(bar)
            self._progress.update(bar, completed=done, total=total, name=name)

        return move

    def __enter__(self) -> "ProgressBars":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
        if not self._progress.disable:
            self._progress.console.print()


def shorten(text: str, room: int) -> str:
    """The beginning of a text: beside more words than there is room for, rich would leave out the bar."""
    return text if len(text) <= room else text[: room - 1].rstrip(" ;,") + "…"
