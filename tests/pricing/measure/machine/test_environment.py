"""Prices of different surroundings are kept apart."""

from types import SimpleNamespace

import jax
import jaxlib
import numpy as np
import pytest

from jaxquard.pricing.measure.machine.environment import environment_key


def key_on(platform, *, kind="made up", shape=(("x", 2),), axis_types=("auto",), ids=(0, 1), runtime="1", **measured):
    client = SimpleNamespace(platform_version=runtime)
    devices = [SimpleNamespace(platform=platform, device_kind=kind, client=client, id=number) for number in ids]
    mesh = SimpleNamespace(devices=np.array(devices, dtype=object), shape=dict(shape), axis_types=axis_types)
    return environment_key(mesh, **measured)


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "another"},
        {"runtime": "2"},
        {"shape": (("y", 2),)},
        {"shape": (("x", 1), ("y", 2))},
        {"shape": (("x", 1), ("y", 2)), "axis_types": ("auto", "auto")},
        {"axis_types": ("explicit",)},
        {"ids": (1, 0)},
        {"ids": (0, 2)},
        {"num_runs": 3},
    ],
    ids=repr,
)
def test_prices_of_another_device_mesh_or_effort_are_others(other):
    assert key_on("tpu", **other) != key_on("tpu")
    assert key_on("tpu", **other) == key_on("tpu", **other)


def test_which_devices_of_a_kind_does_not_matter():
    assert key_on("tpu", ids=(4, 5)) == key_on("tpu")
    assert key_on("gpu") != key_on("tpu")


@pytest.mark.parametrize(
    ("name", "value"), [("jax_compiler_enable_remat_pass", False), ("jax_memory_fitting_effort", 0.5)]
)
def test_rare_settings_of_the_compiler_count(name, value):
    if not hasattr(jax.config, name):
        pytest.skip(f"this version of JAX has no {name}")
    before, usual = key_on("tpu"), getattr(jax.config, name)
    try:
        jax.config.update(name, value)
        assert key_on("tpu") != before
    finally:
        jax.config.update(name, usual)
    assert key_on("tpu") == before


@pytest.mark.parametrize("module", [jax, jaxlib])
def test_prices_of_another_version_are_others(monkeypatch, module):
    before = key_on("tpu")
    monkeypatch.setattr(module, "__version__", "0.0.1")
    assert key_on("tpu") != before


@pytest.mark.parametrize(
    ("name", "platform", "matters"),
    [
        ("NCCL_ALGO", "gpu", True),
        ("NCCL_P2P_DISABLE", "gpu", True),
        ("NCCL_DEBUG", "gpu", False),
        ("NCCL_ALGO", "tpu", False),
    ],
)
def test_settings_of_nccl_matter_on_gpus(monkeypatch, name, platform, matters):
    before = key_on(platform)
    monkeypatch.setenv(name, "1")
    assert (key_on(platform) != before) == matters
