"""The arguments of `RemoteMesh`, without any actor."""

from types import SimpleNamespace

import pytest

import jaxquard as jq
from jaxquard.runtime.ray.controller import start_engine

RENAMED = r"silence_limit_s is now called heartbeat_timeout_s\. Use that name\."


@pytest.fixture
def asked(monkeypatch):
    """The options with which the Ray engine was started."""
    found = {}
    monkeypatch.setattr(start_engine, "start_engine", lambda **options: found.update(options) or SimpleNamespace())
    return found


def test_the_old_name_of_the_heartbeat_timeout_works_and_warns(asked):
    with pytest.warns(DeprecationWarning, match=RENAMED) as warned:
        jq.RemoteMesh((2,), runtime="ray", silence_limit_s=7)
    assert asked["heartbeat_timeout_s"] == 7
    assert warned[0].filename == __file__


@pytest.mark.parametrize(("options", "timeout_s"), [({}, 10.0), ({"heartbeat_timeout_s": 3.5}, 3.5)])
def test_the_heartbeat_timeout(asked, options, timeout_s):
    jq.RemoteMesh((2,), runtime="ray", **options)
    assert asked["heartbeat_timeout_s"] == timeout_s


def test_both_names_of_the_heartbeat_timeout(asked):
    with pytest.raises(jq.errors.MeshError, match=r"old name of heartbeat_timeout_s\. Give the new one alone\."):
        jq.RemoteMesh((2,), runtime="ray", silence_limit_s=7, heartbeat_timeout_s=7)
    assert not asked


def test_the_old_name_in_one_process():
    with (
        pytest.warns(DeprecationWarning, match=RENAMED),
        pytest.raises(jq.errors.MeshError, match="heartbeat_timeout_s=7 has no meaning with runtime='in_process'"),
    ):
        jq.RemoteMesh((2,), silence_limit_s=7)
