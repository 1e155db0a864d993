"""The model's numbers for the headlines of MeshSlice, against data/tpu_v4.md and the paper (section 5)."""

from dataclasses import replace

import pytest

from jaxquard.cluster import load_cluster
from jaxquard.gemm.autotune.models import gpt3, megatron_nlg
from jaxquard.gemm.cost.products import problem_flops
from jaxquard.gemm.problem import Stationary
from tests.gemm.headline_numbers import headline_numbers
from tests.gemm.tune_by_paper import tune_by_paper


def _utilisations(cluster, algorithms=("meshslice",), chips=(256,)):
    return {
        (row.model, row.algorithm, row.num_chips): 100 * row.utilisation
        for row in headline_numbers(cluster, algorithms=algorithms, chips=chips)
    }


def test_simulation_set():
    """Expected 63.8 and 79.1 % (paper 67.4 and 82.2), a loss from 16 chips of 11.8 % (16.8)."""
    found = _utilisations("tpu-v4-simulation", chips=(16, 256))
    assert found["gpt3", "meshslice", 256] == pytest.approx(63.8, abs=0.05)
    assert found["megatron_nlg", "meshslice", 256] == pytest.approx(79.1, abs=0.05)
    loss = 1 - found["gpt3", "meshslice", 256] / found["gpt3", "meshslice", 16]
    assert 100 * loss == pytest.approx(11.8, abs=0.2)


def test_fitted_set():
    """Expected 68.7 and 82.9 %, unoptimised 57.7 and 80.5 (paper 55.6 and 78.2), a loss of 15.8 %."""
    found = _utilisations("tpu-v4-fitted", chips=(16, 256))
    assert found["gpt3", "meshslice", 256] == pytest.approx(68.7, abs=0.15)
    assert found["megatron_nlg", "meshslice", 256] == pytest.approx(82.9, abs=0.15)
    loss = 1 - found["gpt3", "meshslice", 256] / found["gpt3", "meshslice", 16]
    assert 100 * loss == pytest.approx(15.8, abs=0.2)
    for model, expected in ((gpt3, 57.7), (megatron_nlg, 80.5)):
        row = tune_by_paper(model(num_blocks=1), "tpu-v4-fitted", stationary=Stationary.Y).best
        assert 100 * row.utilisation == pytest.approx(expected, abs=0.1)


def test_gain_over_wang_is_a_band():
    """It swings with the permutes: the paper's 13.8 and 26.0 % lie between both ways and one way.

    With one launch for all shards of an iteration, as data/tpu_v4.md has it; with one for each, Wang is slower.
    """
    each = load_cluster("tpu-v4-simulation")
    bidirectional = replace(each, network=replace(each.network, launches_each_permute=False))
    one_way = replace(bidirectional, network=replace(bidirectional.network, is_bidirectional=False))
    gains = {}
    for name, cluster in (("both", bidirectional), ("one", one_way), ("each", each)):
        found = _utilisations(cluster, algorithms=("meshslice", "wang"))
        for model in ("gpt3", "megatron_nlg"):
            gains[model, name] = 100 * (found[model, "meshslice", 256] / found[model, "wang", 256] - 1)
    assert gains["gpt3", "both"] < 13.8 < gains["gpt3", "one"]
    assert gains["megatron_nlg", "both"] < 26.0 < gains["megatron_nlg", "one"]
    expected = {
        ("gpt3", "both"): 10.2,
        ("megatron_nlg", "both"): 7.8,
        ("gpt3", "one"): 39.9,
        ("megatron_nlg", "one"): 31.9,
    }
    for model in ("gpt3", "megatron_nlg"):
        assert gains.pop((model, "each")) > gains[model, "both"]
    assert gains == pytest.approx(expected, abs=4)


@pytest.mark.parametrize(
    ("model", "slices", "expected"),
    [(gpt3, 1, 46.3), (gpt3, 8, 44.9), (megatron_nlg, 1, 49.2), (megatron_nlg, 8, 48.6)],
)
def test_table_3_without_overlap(model, slices, expected):
    """The real 4x4 mesh overlaps nothing: all moves and products one after another, batch 16."""
    problem = model(batch=16, num_blocks=1)
    row = tune_by_paper(
        problem, "tpu-v4-main", 16, mesh_shape=(4, 4), num_slices=slices, memory_limit_bytes=float("inf"),
        stationary=None,
    ).best  # fmt: skip
    serial_s = row.cost.communication_s + row.cost.compute_s
    assert 100 * problem_flops(problem) / (serial_s * 16 * 272e12) == pytest.approx(expected, abs=0.1)


def test_all_algorithms_up_to_256_chips():
    rows = headline_numbers("tpu-v4-simulation", chips=(64, 128))
    names = {(row.model, row.algorithm, row.num_chips) for row in rows}
    assert len(names) == len(rows) == 2 * (7 + 6)
    assert ("gpt3", "cannon", 128) not in names
    for row in rows:
        best = next(
            other for other in rows
            if (other.model, other.num_chips, other.algorithm) == (row.model, row.num_chips, "meshslice")
        )  # fmt: skip
        assert row.utilisation <= best.utilisation
