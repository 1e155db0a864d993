"""Progress: bars on a terminal, and lines about every 15 s where there is none."""

import time

import pytest

from jaxquard.progress import EVERY_S, ProgressBars, ProgressLines, show_progress


class Clock:
    """A clock that stands still but for waiting; what happens meanwhile is a list of calls."""

    def __init__(self, *happenings):
        self.now_s, self.happenings = 0.0, list(happenings)

    def __call__(self):
        return self.now_s

    def wait(self, time_s):
        self.now_s += time_s
        if not self.happenings:
            return True
        self.happenings.pop(0)()
        return False


def nothing():
    pass


def lines_of(clock, prepare, capsys):
    lines = ProgressLines(wait=clock.wait, clock=clock)
    clock.happenings = [*prepare(lines)]
    lines.run()
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_a_line_every_15_s(capsys):
    def prepare(lines):
        move = lines.add("pricing segments", name="tracing")
        yield nothing
        yield lambda: (move(1, 90, "a"), move(12, 90, "segment 0, rows"))
        yield nothing
        yield lambda: move(90, 90, "segment 9")
        yield from [nothing] * 2

    assert EVERY_S == 15
    assert lines_of(Clock(), prepare, capsys) == [
        "15 s: pricing segments (tracing)",
        "30 s: pricing segments 12/90 (segment 0, rows)",
        "45 s: pricing segments 12/90 (segment 0, rows)",
        "1 min 0 s: pricing segments 90/90 (segment 9)",
        "1 min 15 s: pricing segments 90/90 (segment 9)",
        "1 min 30 s: pricing segments 90/90 (segment 9)",
    ]


def test_what_runs_at_once_shares_a_line(capsys):
    def prepare(lines):
        cells, part = lines.add("cells", name="starting"), lines.add("this cell")
        later = lines.add("later")
        yield nothing
        yield lambda: (cells(3, 10, ""), part(2, 2, "x"))
        yield lambda: part(1, 4, "y")
        yield lambda: later(0, 5, "")

    assert lines_of(Clock(), prepare, capsys) == [
        "15 s: cells (starting)",
        "30 s: cells 3/10",
        "45 s: cells 3/10; this cell 1/4 (y)",
        "1 min 0 s: cells 3/10; this cell 1/4 (y); later 0/5",
    ]


def test_before_anything_has_begun_nothing_is_said(capsys):
    assert lines_of(Clock(), lambda lines: [lambda: lines.add("steps"), nothing], capsys) == []


def test_hours(capsys):
    def prepare(lines):
        lines.add("cells")(1, 9, "")
        yield from [nothing] * 300

    assert lines_of(Clock(), prepare, capsys)[-1] == "1 h 15 min: cells 1/9"


def test_short_work_says_nothing_without_a_terminal(capsys):
    start_s = time.monotonic()
    with ProgressBars() as bars:
        move = bars.add("work", name="tracing")
        move(1, 2, "half")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    assert time.monotonic() - start_s < EVERY_S / 3


def test_words_leave_room_for_the_bar_of_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with ProgressBars() as bars:
        bars.add("work")(1, 2, "segment 0, columns rows rows rows, contracted")
    shown = capsys.readouterr().err
    assert "segment 0, columns rows rows…" in shown


@pytest.mark.parametrize("color", ["", "1"])
def test_a_call_that_ends_within_seconds_shows_nothing(capsys, monkeypatch, color):
    monkeypatch.setenv("FORCE_COLOR", color)
    with show_progress(True, "searching") as move:
        move(1, 2, "half")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_bar_comes_after_seconds(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown, limit_s = "", time.monotonic() + 30
    with ProgressBars(quiet_s=0.01) as bars:
        move = bars.add("searching")
        while "searching" not in shown and time.monotonic() < limit_s:
            move(1, 2, "half")
            time.sleep(0.01)
            shown += capsys.readouterr().err
    assert "1/2" in shown


def test_progress_that_nobody_wants(capsys, monkeypatch):
    monkeypatch.setattr("jaxquard.progress.EVERY_S", 0.01)
    with show_progress(False, "searching") as move:
        move(1, 2, "half")
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_progress_goes_to_a_callback():
    calls = []
    with show_progress(lambda *call: calls.append(call), "searching") as move:
        move(1, 2, "half")
    assert calls == [(1, 2, "half")]


def test_long_work_says_where_it_stands_without_a_terminal(capsys, monkeypatch):
    """The thread that looks at the clock is real; only the 15 s are not."""
    monkeypatch.setattr("jaxquard.progress.EVERY_S", 0.01)
    shown = ""
    with ProgressBars() as bars:
        bars.add("work")(1, 2, "half")
        limit_s = time.monotonic() + 30
        while not shown and time.monotonic() < limit_s:
            time.sleep(0.01)
            shown += capsys.readouterr().err
    assert shown.splitlines()[0].endswith("s: work 1/2 (half)")


def test_an_error_ends_the_lines(capsys):
    def fail():
        with ProgressBars() as bars:
            bars.add("work")(1, 2, "half")
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        fail()
    assert capsys.readouterr().err == ""


def test_bars_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with ProgressBars() as bars:
        bars.add("steps")(2, 2, "loss 1.0")
    shown = capsys.readouterr().err
    assert "steps" in shown
    assert "2/2" in shown
    assert "loss 1.0" in shown
