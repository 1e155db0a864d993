"""The figures of one H200 for eight: predictions against what was measured on it."""

import statistics

import pytest

from benchmarks.mock_gpu_prices import layer_programs, main
from benchmarks.mock_gpu_report import compare_strategies, rank_correlation, read_programs
from jaxquard.cluster import load_cluster


@pytest.mark.slow
def test_all_strategies_of_a_layer():
    programs = read_programs()
    assert len(programs) == 81
    compared = compare_strategies(programs, load_cluster("h200-8"))
    assert statistics.mean(abs(one.error) for one in compared) <= 0.10
    totals = [one.measured_total_s for one in compared], [one.predicted_total_s for one in compared]
    assert rank_correlation(*totals) >= 0.9
    assert rank_correlation([one.measured_s for one in compared], [one.predicted_s for one in compared]) >= 0.9
    pick = min(compared, key=lambda one: one.predicted_total_s)
    assert pick.measured_total_s <= 1.05 * min(totals[0])


def test_some_strategies_of_a_layer():
    """Every ninth, for a quick look at what the slow test holds."""
    programs = dict(list(read_programs().items())[::9])
    compared = compare_strategies(programs, load_cluster("h200-8"))
    assert statistics.mean(abs(one.error) for one in compared) <= 0.12
    assert rank_correlation([one.measured_s for one in compared], [one.predicted_s for one in compared]) >= 0.8


def test_rank_correlation():
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 50.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)


@pytest.mark.slow
def test_the_script_itself_on_cpu(tmp_path, capfd):
    """As on a GPU, with a tiny model and virtual devices."""
    assert len(layer_programs("cpu")) == 3
    main(["--platform", "cpu", "--out", str(tmp_path), "--limit", "60", "--stage", "prices"])
    programs = read_programs(tmp_path)
    assert len(programs) == 3
    assert all(min(program["times_s"]) > 0 for program in programs.values())
    assert "3 programs, 0 errors" in capfd.readouterr().out
