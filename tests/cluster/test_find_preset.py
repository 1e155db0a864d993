"""The preset of a device's kind."""

import pytest

from jaxquard.cluster import find_preset, preset_names


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v4", "tpu-v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
    ],
)
def test_chips_with_a_preset_are_found(kind, name):
    assert find_preset(kind) == name
    assert name in preset_names()


@pytest.mark.parametrize("kind", ["cpu", "TPU v3", "NVIDIA GH200 480GB", "NVIDIA GeForce RTX 4090", ""])
def test_others_have_none(kind):
    assert find_preset(kind) is None
