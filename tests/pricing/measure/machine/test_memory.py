"""The memory of devices and of the host."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxquard.pricing.measure.machine import memory
from tests.pricing.programs import line_mesh

GIB = 2**30


@pytest.fixture
def container(tmp_path):
    """A container's folder: limited to 8 GiB, 6 of them used, one of these by files that were read."""
    (tmp_path / "memory.max").write_text(f"{8 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{6 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon {5 * GIB}\ninactive_file {GIB}\nactive_file 0\n")
    return tmp_path


def test_what_a_container_uses_is_not_free(container):
    assert memory._container_bytes(container) == 3 * GIB


def test_it_is_never_less_than_nothing(container):
    (container / "memory.current").write_text(f"{12 * GIB}\n")
    assert memory._container_bytes(container) == 0


@pytest.mark.parametrize("name", ["memory.max", "memory.current", "memory.stat"])
def test_where_nobody_says_there_is_no_limit(container, name):
    (container / name).write_text("max\n")
    assert memory._container_bytes(container) is None
    (container / name).unlink()
    assert memory._container_bytes(container) is None


def test_what_the_process_keeps_it_can_use_again(monkeypatch):
    monkeypatch.setattr(memory, "_host_bytes", lambda: 3 * GIB)
    monkeypatch.setattr(memory, "retained_heap_bytes", lambda: 5 * GIB)
    assert memory.available_bytes(line_mesh()) == GIB


def test_the_host_or_the_container_whichever_has_less(monkeypatch):
    for left, expected in ((1, 1), (2**60, None)):
        monkeypatch.setattr(memory, "_container_bytes", lambda folder, left=left: left)
        found = memory._host_bytes()
        assert found == expected if expected is not None else 1 < found < 2**60


def accelerators(*stats):
    """A mesh of devices that report so much."""
    devices = [SimpleNamespace(platform="gpu", memory_stats=lambda stat=stat: stat) for stat in stats]
    return SimpleNamespace(devices=np.array(devices, dtype=object))


def test_an_accelerator_has_what_is_left_and_the_fullest_decides():
    mesh = accelerators(
        {"bytes_limit": 8 * GIB, "bytes_in_use": GIB}, {"bytes_limit": 9 * GIB, "bytes_in_use": 4 * GIB}
    )
    assert memory.available_bytes(mesh) == 5 * GIB
    assert memory.capacity_bytes(mesh) == 8 * GIB


@pytest.mark.parametrize("stats", [None, {}])
def test_where_a_device_does_not_report_nothing_is_known(stats):
    assert memory.available_bytes(accelerators(stats)) is None
    assert memory.capacity_bytes(accelerators(stats)) is None
