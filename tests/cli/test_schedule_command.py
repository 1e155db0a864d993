"""`jaxquard schedule`: what it prints, writes and refuses."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from jaxquard.schedules import SCHEDULES, OneFOneB, ZeroBubbleV, read_csv, write_csv
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli


def run(*words, columns=120):
    return run_cli("schedule", *words, columns=columns)


def without_styles(text):
    """typer colours its own help and usage errors on some CI machines."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_draws_the_grid_with_its_numbers():
    result = run("zero-bubble-v", "--stages", 8, "--microbatches", 16)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "ZeroBubbleV(8): 8 stages on 4 actors, 16 microbatches"
    assert lines[1] == "time 0 to 33 of 99 (continued below)"
    assert lines[3].startswith("actor 0 0,7 F0-F1-F2-F3-F4-F5-F6-f0-i0-w0-f1-")
    assert lines[-1] == (
        "time 99, bubble 3.0 % (0.0 % when steps follow each other without a barrier), "
        "at most 8 activations kept (every actor)"
    )
    assert max(map(len, lines[:-1])) <= 120
    assert result.stderr == ""


def test_json():
    answer = read_json(run("zero_bubble_v", "--stages", 4, "--microbatches", 3, "--json"))
    assert [answer[key] for key in ("num_stages", "num_actors", "num_microbatches", "time_s")] == [4, 2, 3, 19.0]
    assert answer["rows"] == [[str(task) for task in row] for row in ZeroBubbleV(4).rows(3)]
    assert answer["peak_activations"] == [4, 4]
    assert answer["bubble"] == pytest.approx(1 / 19)


def test_task_times():
    times = [
        "--forward-time",
        2,
        "--input-gradient-time",
        3,
        "--weight-gradient-time",
        1,
        "--transfer-time",
        0.5,
    ]
    result = run("1f1b", "--stages", 2, "--microbatches", 1, *times)
    assert "OneFOneB(2): 2 stages on 2 actors, 1 microbatch\n" in result.stdout
    assert "time 13, bubble 53.8 %" in result.stdout


def test_a_number_of_actors():
    result = run("interleaved", "--stages", 8, "--microbatches", 8, "--actors", 4)
    assert result.stdout.startswith("Interleaved(8, 4): 8 stages on 4 actors, 8 microbatches\n")


def test_writes_svg_and_csv(tmp_path):
    svg, csv = tmp_path / "order.svg", tmp_path / "order.csv"
    result = run("zero-bubble-v", "--stages", 4, "--microbatches", 6, "--plot", svg, "--out", csv)
    assert result.exit_code == 0
    assert result.stderr.split() == ["wrote", str(csv), "wrote", str(svg)]
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert read_csv(csv) == ZeroBubbleV(4).rows(6)


def test_reads_a_csv(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(write_csv(OneFOneB(2).rows(3)))
    result = run(path)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{path}: 2 stages on 2 actors, 3 microbatches\n")
    assert run(path, "--stages", 2, "--actors", 2, "--microbatches", 3).exit_code == 0


def test_a_csv_that_disagrees_with_an_option(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(write_csv(OneFOneB(2).rows(3)))
    result = run(path, "--microbatches", 4)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {path} has 3 microbatches, but --microbatches 4 was given. Leave --microbatches out.\n"
    )


REFUSED = {
    "pipedream": "no schedule is called 'pipedream'. Use one of: gpipe, 1f1b,",
    "1f1b": "1f1b needs --stages, but it was not given. Add, say, --stages 8.",
    "1f1b --stages 4": "1f1b needs --microbatches, but it was not given. Add, say, --microbatches 8.",
    "1f1b --stages 1000000 --microbatches 1000000": "--stages 1000000 times --microbatches 1000000 are more tasks than",
    "1f1b --stages 4 --microbatches 4 --actors 2": "1f1b puts 4 stages on 4 actors, but 2 actors were asked for.",
    "interleaved --stages 8 --microbatches 4 --actors 3": "Interleaved(8, 3) gives every actor as many stages",
    "gpipe --stages 2 --microbatches 2 --forward-time nan": "--forward-time should be a number, 0 or more, but is nan.",
    "gpipe --stages 2 --microbatches 2 --out .": "cannot write . (Is a directory).",
    ". --stages 2": "no schedule is called '.'. Use one of: gpipe, ",
    "1f1b --stages 0 --microbatches 4": "--stages should be a whole number, 1 or more, but is 0.",
    "interleaved --stages 8 --microbatches 4": "interleaved needs --actors, the number of actors",
    "zero-bubble-v --stages 7 --microbatches 4": "ZeroBubbleV(7) puts two stages on each actor",
    "gpipe --stages 2 --microbatches 2 --plot /no/folder/x.svg": (
        "cannot write /no/folder/x.svg (No such file or directory). Give a file in a folder that exists"
    ),
    "none.csv": "cannot read the schedule none.csv (No such file or directory).",
}


@pytest.mark.parametrize("words", REFUSED)
def test_mistakes_are_answered_in_one_line(words):
    result = run(*words.split(), columns=40)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {REFUSED[words]}")
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.output


def test_a_negative_time_is_refused():
    result = run("gpipe", "--stages", 2, "--microbatches", 2, "--forward-time", -1)
    assert result.exit_code == 2
    assert "--forward-time" in without_styles(result.stderr)


def test_help_has_an_example_and_all_names():
    result = run("--help")
    assert result.exit_code == 0
    plain = without_styles(result.stdout)
    assert "jaxquard schedule zero-bubble-v --stages 8 --microbatches 16" in plain
    assert ", ".join(SCHEDULES) in " ".join(plain.replace("│", " ").split())
