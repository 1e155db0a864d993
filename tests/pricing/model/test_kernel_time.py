"""Kernels by shape: against measured products, published attention, and what must hold for all shapes."""

import csv
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxquard.cluster
from jaxquard.cluster import load_cluster
from jaxquard.errors import StepPriceError
from jaxquard.pricing import chip_of, flash_time_s, matmul_time_s, pass_time_s, with_speed

GPUS = ("a100", "h100", "h200", "b200", "v100-nvlink")
DIMS = st.integers(1, 200).map(lambda size: size * 64)


def measured_products():
    """The whole products that were measured on an H200."""
    path = Path(jaxquard.cluster.__file__).parent / "presets" / "h200.csv"
    rows = csv.DictReader(path.read_text().splitlines())
    return [
        (int(row["m"]), int(row["n"]), int(row["k"]), float(row["time_s"])) for row in rows if row["num_slices"] == "1"
    ]


def test_measured_products_of_an_h200_come_out():
    # Inside of a training step products are slower; the measured ones ran alone.
    alone = with_speed(chip_of(load_cluster("h200")), 1 / 0.83)
    errors = [abs(matmul_time_s(alone, m, n, k, "bf16") / time_s - 1) for m, n, k, time_s in measured_products()]
    assert len(errors) == 27
    assert statistics.median(errors) < 0.03
    assert max(errors) < 0.08


@pytest.mark.parametrize(
    ("cluster", "name", "seq", "published"),
    [
        # Forward with a causal mask and heads of 128: figures 5 and 6 of arXiv 2307.08691, figure 5 of 2407.08608.
        ("a100", "flash2", 16384, 190e12),
        ("h100", "flash2", 16384, 360e12),
        ("h100", "flash3", 16384, 600e12),
    ],
)
def test_published_attention_comes_out(cluster, name, seq, published):
    chip = chip_of(load_cluster(cluster))
    time_s = flash_time_s(chip, chip.flash[name], flops=1e13, seq=seq, head_dim=128, is_backward=False)
    slowed = {"a100": 0.88, "h100": 0.83}[cluster]
    assert 1e13 / time_s / slowed == pytest.approx(published, rel=0.08)


@given(m=DIMS, n=DIMS, k=DIMS, cluster=st.sampled_from((*GPUS, "v5e", "v5p", "v6e")))
def test_no_product_is_faster_than_the_chip(m, n, k, cluster):
    chip = chip_of(load_cluster(cluster))
    time_s = matmul_time_s(chip, m, n, k, "bf16")
    assert time_s >= 2 * m * n * k / chip.flops_per_s("bf16")
    assert time_s >= 2 * (m * k + k * n + m * n) / chip.memory_bandwidth_bytes_per_s


@given(m=DIMS, n=DIMS, k=DIMS, cluster=st.sampled_from(GPUS))
def test_a_larger_product_takes_longer(m, n, k, cluster):
    chip = chip_of(load_cluster(cluster))
    assert matmul_time_s(chip, 2 * m, n, k, "bf16") >= matmul_time_s(chip, m, n, k, "bf16")
    assert matmul_time_s(chip, m, n, 2 * k, "bf16") >= 0.999 * matmul_time_s(chip, m, n, k, "bf16")


def test_a_thin_product_is_bound_by_memory():
    chip = chip_of(load_cluster("h100"))
    assert matmul_time_s(chip, 16, 8192, 8192, "bf16") == pytest.approx(pass_time_s(chip, 2 * 8192 * 8192), rel=0.05)


def test_a_chip_without_8_bits_computes_in_16():
    chip = chip_of(load_cluster("a100"))
    assert chip.flops_per_s("fp8") == chip.flops_per_s("bf16")
    with pytest.raises(StepPriceError, match=r"no products of 'int3'. Use one of: fp32, fp16, bf16, fp8, fp4"):
        chip.flops_per_s("int3")


def test_an_unknown_chip_takes_its_clusters_figures():
    cluster = load_cluster("cpu")
    chip = chip_of(cluster)
    assert chip.flops_per_s("bf16") == cluster.compute.effective_flops_per_s
    assert chip.name == "cpu"
