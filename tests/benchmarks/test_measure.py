import io
import time

import pytest
from rich.console import Console

from benchmarks.measure import Measurement, format_time, measure, print_ratios


def test_rounds_are_interleaved_and_rotate():
    ran = []
    candidates = {name: lambda name=name: ran.append(name) for name in "abc"}
    measurements = measure(candidates, num_rounds=3, num_warmups=1)
    assert "".join(ran) == "cab" + "abc" + "bca" + "cab"
    assert list(measurements) == ["a", "b", "c"]
    assert {len(measurement.times_s) for measurement in measurements.values()} == {3}


def test_times_are_seconds():
    (measurement,) = measure({"sleep": lambda: time.sleep(0.02)}, num_rounds=2, num_warmups=0).values()
    assert 0.02 <= measurement.minimum_s <= measurement.median_s


def test_waits_for_results():
    class Pending:
        waited = 0

        def block_until_ready(self):
            Pending.waited += 1
            return self

    measure({"pending": Pending}, num_rounds=2, num_warmups=1)
    assert Pending.waited == 3


def test_ratio_is_taken_within_rounds():
    """The machine is ten times slower in the last round: no ratio moves."""
    base = Measurement(name="base", times_s=(1.0, 1.2, 10.0))
    twice = Measurement(name="twice", times_s=(2.0, 2.4, 20.0))
    assert twice.ratio_to(base) == pytest.approx(2.0)
    assert twice.minimum_ratio_to(base) == pytest.approx(2.0)
    assert base.median_s == 1.2
    assert base.spread == pytest.approx((5.6 - 1.1) / 1.2)
    assert Measurement(name="once", times_s=(1.0,)).spread == 0


def test_table_says_whether_targets_are_kept():
    text = io.StringIO()
    measurements = {
        "bare": Measurement(name="bare", times_s=(0.002,) * 3),
        "ours": Measurement(name="ours", times_s=(0.003,) * 3),
        "theirs": Measurement(name="theirs", times_s=(0.02,) * 3),
    }
    print_ratios(
        measurements,
        title="a step",
        base="bare",
        at_most={"ours": 2.0, "theirs": 2.0},
        console=Console(file=text, width=120),
    )
    lines = {line.split("│")[1].strip(): line for line in text.getvalue().splitlines() if "│" in line}
    assert "3.00 ms" in lines["ours"]
    assert "1.500" in lines["ours"]
    assert "at most 2.00: kept" in lines["ours"]
    assert "10.000" in lines["theirs"]
    assert "at most 2.00: missed" in lines["theirs"]
    assert "at most" not in lines["bare"]


@pytest.mark.parametrize(
    ("time_s", "text"), [(2.5, "2.50 s"), (0.0021, "2.10 ms"), (7e-6, "7.00 µs"), (5e-8, "0.05 µs")]
)
def test_format_time(time_s, text):
    assert format_time(time_s) == text
