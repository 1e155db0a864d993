"""Prices of different surroundings are kept apart."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxquard.pricing.environment import environment_key


def key_on(platform):
    device = SimpleNamespace(platform=platform, device_kind="made up", client=None, id=0)
    mesh = SimpleNamespace(devices=np.array([device], dtype=object), shape={"x": 1}, axis_types=())
    return environment_key(mesh)


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
