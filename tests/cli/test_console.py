"""Printing that the subcommands share."""

import io
import json
import os

import pytest
from rich.console import Console

from jaxquard.cli.console import can_color, check_writable, count, print_json, print_line, write_file
from jaxquard.cli.exit_codes import UsageError
from jaxquard.errors import InfeasibleError


def test_counts():
    assert [count(1, "stage"), count(2, "stage"), count(1, "microbatch"), count(8, "microbatch")] == [
        "1 stage",
        "2 stages",
        "1 microbatch",
        "8 microbatches",
    ]


@pytest.mark.parametrize(("system", "can"), [("truecolor", True), ("256", True), ("standard", False), (None, False)])
def test_sixteen_colours_are_too_few(system, can):
    assert can_color(Console(color_system=system, no_color=False)) is can
    assert not can_color(Console(color_system=system, no_color=True))


@pytest.mark.parametrize(("terminal", "lines"), [(True, ["one two", "three"]), (False, ["one two three"])])
def test_prose_is_wrapped_at_words_on_a_terminal_only(terminal, lines):
    file = io.StringIO()
    print_line(Console(file=file, width=10, force_terminal=terminal, color_system=None), "one two three")
    assert [line.rstrip() for line in file.getvalue().splitlines()] == lines


def test_files(tmp_path, capsys):
    check_writable(tmp_path / "new.txt")
    assert not (tmp_path / "new.txt").exists()
    write_file(tmp_path / "new.txt", "text")
    check_writable(tmp_path / "new.txt")
    assert (tmp_path / "new.txt").read_text() == "text"
    assert capsys.readouterr().err.split() == ["wrote", str(tmp_path / "new.txt")]


def test_what_is_there_stays(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere.txt")
    os.mkfifo(tmp_path / "pipe")
    for name in ("empty.txt", "link", "pipe", os.devnull):
        check_writable(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.txt", "link", "pipe"]
    assert not (tmp_path / "nowhere.txt").exists()
    assert os.path.exists(os.devnull)


@pytest.mark.parametrize(
    ("refuse", "kind"), [(check_writable, UsageError), (lambda path: write_file(path, ""), InfeasibleError)]
)
def test_a_folder_that_is_not_there(tmp_path, refuse, kind):
    with pytest.raises(kind, match=r"cannot write .*x\.txt \(No such file or directory\)\. Give a file in"):
        refuse(tmp_path / "no" / "x.txt")


def test_a_folder_in_place_of_a_file(tmp_path):
    with pytest.raises(UsageError, match=r"cannot write .* \(Is a directory\)"):
        check_writable(None, tmp_path)


def test_json_has_no_numbers_that_json_lacks(capsys):
    print_json({"a": [1.5, float("nan")], "b": (float("inf"), {"c": -float("inf")}), "d": None})
    assert json.loads(capsys.readouterr().out) == {"a": [1.5, None], "b": [None, {"c": None}], "d": None}
