"""`jaxquard simulate`: what it prints, writes and refuses."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from jaxquard.cli.exit_codes import USAGE
from jaxquard.ir.timeline import Span, Timeline, Track
from jaxquard.report.timelines.perfetto import read_perfetto, write_perfetto
from jaxquard.schedules import OneFOneB, play_rows
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli

GPT3 = ("--model", "gpt:175b", "--cluster", "h100-8x16", "--schedule", "interleaved", "--stages", 48, "--actors", 8)
TIMES = ("--stages", 2, "--microbatches", 2, "--forward-ms", 10)


def run(*words, columns=120):
    return run_cli("simulate", *words, columns=columns)


def test_a_model_on_a_cluster():
    result = run(*GPT3, "--microbatches", 32)
    lines = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert lines[0] == (
        "gpt:175b on 128 chips of h100-8x16: interleaved, 48 stages on 8 actors, 32 microbatches of 1, tensor 8, data 2"
    )
    assert lines[1].split() == [
        *("actor", "busy", "bubble", "peak", "GB"),
        *("weights", "gradients", "activations", "working", "transfers"),
    ]
    assert [line.split()[0] for line in lines[2:10]] == [str(actor) for actor in range(8)]
    assert re.match(r"step \d\.\d{3} s, bubble \d\.\d % of the loop, .*MFU \d\d\.\d %, \d+ TFLOP/s a chip, ", lines[10])


def test_json_of_a_model():
    answer = read_json(run(*GPT3, "--global-batch", 256, "--microbatch-size", 4, "--json"))
    assert [answer[key] for key in ("num_stages", "num_actors", "num_microbatches", "tensor", "data")] == [
        48,
        8,
        32,
        8,
        2,
    ]
    assert answer["actors"][3]["stages"] == [3, 11, 19, 27, 35, 43]
    assert answer["peak_bytes"] == max(actor["peak_bytes"] for actor in answer["actors"])
    assert sum(answer["actors"][0]["at_peak_bytes"].values()) == answer["actors"][0]["peak_bytes"]
    assert answer["fits"] == (answer["peak_bytes"] <= answer["limit_bytes"])
    assert 0 < answer["mfu"] < 1
    flops = answer["flops_per_s_per_chip"] * 128 * answer["step_time_s"]
    assert flops == pytest.approx(256 * 2048 * 6 * 175e9, rel=0.05)


def test_replicas_cost_no_more_than_their_sums():
    """One replica is played: on 100,000 chips the loop is as on 128, but for the jitter of many hosts."""
    few = read_json(run(*GPT3, "--microbatches", 16, "--json"))
    words = ("--tensor", 8, "--microbatches", 16, "--json")
    many = read_json(run("--model", "gpt:175b", "--cluster", "h100-8x12500", *GPT3[4:], *words))
    assert (many["num_chips"], many["data"]) == (99968, 1562)
    assert many["bubble"] == pytest.approx(few["bubble"], rel=0.05)
    assert few["loop_time_s"] < many["loop_time_s"] < 1.2 * few["loop_time_s"]


def test_a_model_that_does_not_fit_says_by_how_much_and_where():
    result = run(*GPT3, "--microbatches", 32, "--microbatch-size", 8)
    line, provenance = result.stdout.splitlines()[-2:]
    assert provenance == "Prices are modelled, with the constants of jaxpp; nothing was measured."
    found = re.fullmatch(
        r"It does not fit: actor 0 needs ([\d.]+) GB a chip, but there are ([\d.]+) GB for a step: "
        r"([\d.]+) GB too much, most of it activations\. Use --recompute full, a larger --tensor, or a smaller "
        r"--microbatch-size\.",
        line,
    )
    needed, available, excess = map(float, found.groups())
    assert needed - available == pytest.approx(excess, abs=0.11)
    assert result.exit_code == 0
    full = read_json(run(*GPT3, "--microbatches", 32, "--microbatch-size", 8, "--recompute", "full", "--json"))
    none = read_json(run(*GPT3, "--microbatches", 32, "--microbatch-size", 8, "--json"))
    assert full["peak_bytes"] < none["peak_bytes"]
    assert full["step_time_s"] > 1.1 * none["step_time_s"]


def test_a_model_of_the_package():
    """Not published under its name, so its config says its sizes."""
    words = ("--model", "gpt-1b", "--cluster", "h100-8", "--actors", 4, "--json")
    answer = read_json(run(*words))
    assert (answer["sequence_length"], answer["tensor"], answer["data"]) == (2048, 2, 1)
    assert answer["fits"]


def test_given_times():
    answer = read_json(
        run(*TIMES, "--transfer-ms", 1, "--activation-size", "1GB", "--memory-limit", "1500MB", "--json")
    )
    expected = play_rows(OneFOneB(2).rows(2)).makespan_s
    assert answer["schedule"] == "1f1b"
    # Two transfers stand in the way of the first microbatch, and one of the last.
    assert answer["step_time_s"] == pytest.approx(expected * 10e-3 + 2e-3, abs=1.1e-3)
    assert (answer["peak_bytes"], answer["fits"], "mfu" in answer) == (2 * 10**9, False, False)
    lines = run(*TIMES).stdout.splitlines()
    assert lines[0] == "1f1b, 2 stages on 2 actors, 2 microbatches"
    assert lines[2].startswith("actor 0 F0")
    assert lines[-1] == "step 90 ms, bubble 33.3 % of the loop."


def test_synchronous_sends_take_longer():
    words = ("--stages", 4, "--microbatches", 8, "--forward-ms", 10, "--transfer-ms", 3, "--json")
    asynchronous, synchronous = read_json(run(*words)), read_json(run(*words, "--synchronous-sends"))
    assert synchronous["step_time_s"] > asynchronous["step_time_s"]


def test_files(tmp_path):
    page, picture, trace = tmp_path / "a.html", tmp_path / "a.svg", tmp_path / "a.json"
    assert run(*TIMES, "--out", page, "--plot", picture).exit_code == 0
    assert "<title>1f1b, 2 stages on 2 actors, 2 microbatches</title>" in page.read_text()
    ElementTree.fromstring(picture.read_text())
    assert run(*TIMES, "--out", trace).exit_code == 0
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"}
    assert names == {f"{stage}{phase}{mb}" for stage in (0, 1) for phase in "FB" for mb in (0, 1)}


@pytest.fixture
def measured(tmp_path):
    """A trace of two stages and two microbatches in which stage 1 is slow, and its tasks at the end are fused."""
    times = (
        *((0, "0F0", 0, 10), (0, "0F1", 10, 20), (0, "0B0", 80, 100), (0, "0B1", 130, 150)),
        *((1, "1FB0", 10, 70), (1, "1FB1", 70, 130), (1, "update.1", 130, 140)),
    )
    spans = [
        Span(actor=actor, track=Track.COMPUTE, name=name, start_s=start / 1e3, end_s=end / 1e3)
        for actor, name, start, end in times
    ]
    spans.sort(key=lambda span: (span.start_s, span.actor))
    path = tmp_path / "measured.json"
    path.write_text(write_perfetto(Timeline(num_actors=2, spans=tuple(spans))))
    return path


def test_a_measured_trace_is_played_and_compared(measured, tmp_path):
    page = tmp_path / "beside.html"
    result = run("--measured", measured, "--json", "--out", page)
    answer = read_json(result)
    assert (answer["num_stages"], answer["num_microbatches"]) == (2, 2)
    assert answer["measured_step_time_s"] == pytest.approx(0.15)
    # 0F0, then all of stage 1, then 0B1: without the transfer that the trace has.
    assert answer["step_time_s"] == pytest.approx(0.15)
    assert ">simulated<" in page.read_text()
    assert ">measured<" in page.read_text()
    assert answer["measured_loop_time_s"] == pytest.approx(0.15)
    line = "Measured: step 150 ms, its loop 150 ms; the simulated loop takes 1.000 of that."
    assert line in run("--measured", measured).stdout


def test_another_schedule_with_measured_times(measured):
    answer = read_json(run("--measured", measured, "--schedule", "gpipe", "--stages", 2, "--microbatches", 4, "--json"))
    assert (answer["schedule"], answer["num_microbatches"]) == ("gpipe", 4)


def test_a_trace_comes_back_as_it_was_written(measured):
    timeline = read_perfetto(measured)
    assert [span.name for span in timeline.spans if span.actor == 1] == ["1FB0", "1FB1", "update.1"]
    assert write_perfetto(timeline) == measured.read_text()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--forward-ms 1", "error: a pipeline needs --stages or --actors, but got neither."),
        ("--stages 4", "error: nothing gives the times of tasks. Add --model and --cluster"),
        ("--schedule 1f2b --stages 4 --forward-ms 1", "error: no schedule is called '1f2b'. Use one of: gpipe,"),
        ("--stages 9 --actors 4 --forward-ms 1", "error: Interleaved(9, 4) gives every actor as many stages, but 9"),
        (
            "--model gpt:175b --cluster h100-8 --actors 16",
            "error: --actors 16 times --tensor 1 times --data 1 are 16 chips, but h100-8 has 8.",
        ),
        ("--model gpt:176b --cluster h100-8 --actors 8", "error: no transformer is known as 'gpt-176b'."),
        ("--model gpt:175b --actors 8", "error: --model needs --cluster, the hardware that it runs on."),
        ("--cluster h100-8 --actors 8 --forward-ms 1", "error: --cluster is for a --model"),
        ("--model gpt:175b --cluster h100-8x16 --actors 8 --forward-ms 2", "error: --model gives the times of tasks"),
        (
            "--model gpt:175b --cluster h100-8x16 --actors 8 --global-batch 101",
            "error: --global-batch 101 does not divide into microbatches of 1 on 2 replicas. Use a multiple of 2.",
        ),
        (
            "--model gpt:175b --cluster h100-8x16 --actors 8 --global-batch 100 --microbatches 3",
            "error: --global-batch 100 makes 50 microbatches of 1 on 2 replicas, but --microbatches 3 was given.",
        ),
        ("--model gpt:175b --cluster h100-8x16 --actors 8 --recompute x", "error: no recompute is called 'x'."),
        ("--stages 2 --forward-ms 1 --out x.txt", "error: --out should end in .html (a page) or .json"),
        ("--stages 2 --forward-ms 1 --memory-limit x", "error: --memory-limit should be a size above 0"),
        ("--stages 2000 --forward-ms 1 --microbatches 2000", "error: --stages 2000 times --microbatches 2000 are more"),
        ("--measured no.json", "error: cannot read the trace no.json (No such file or directory)."),
        ("--stages 2 --forward-ms -1", "error: --forward-ms should be a number, 0 or more, but is -1"),
    ],
)
def test_bad_input(words, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*words.split())
    assert (result.exit_code, result.stdout) == (USAGE, "")
    assert result.stderr.startswith(line)
    assert len(result.stderr.splitlines()) == 1


def test_the_nearest_schedule_is_named():
    assert run("--schedule", "1f2b", "--stages", 4, "--forward-ms", 1).stderr.endswith("Did you mean '1f1b'?\n")


@pytest.mark.parametrize("text", ["{", "[]", '{"traceEvents": [{"ph": "X"}]}', '{"traceEvents": 3}'])
def test_a_file_that_is_no_trace(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    result = run("--measured", path)
    assert result.stderr.startswith(f"error: {path} is no trace of jaxquard.")


def test_a_trace_of_other_stages(measured):
    result = run("--measured", measured, "--schedule", "1f1b", "--stages", 3)
    assert result.stderr.startswith("error: the trace has no task of stage 2, but the schedule has 3 stages.")


def test_a_trace_without_tasks_of_a_pipeline(tmp_path):
    """As `jaxquard price --out` writes one: the operations of a chip."""
    span = Span(actor=0, track=Track.COMPUTE, name="fusion.1", start_s=0.0, end_s=1.0)
    path = tmp_path / "chip.json"
    path.write_text(write_perfetto(Timeline(num_actors=1, spans=(span,))))
    result = run("--measured", path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the trace of --measured has no task of a pipeline.")
