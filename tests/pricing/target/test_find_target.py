"""Targets of clusters: the description that a compiler gets, and the errors where there is no compiler."""

import math
import platform
from dataclasses import replace

import pytest

from jaxquard.cluster import load_cluster, preset_names
from jaxquard.errors import ClusterError, InfeasibleError
from jaxquard.pricing.target import find_target as module
from jaxquard.pricing.target.find_target import find_target


@pytest.fixture
def all_compilers(monkeypatch):
    monkeypatch.setattr(module, "_is_installed", lambda name: True)


@pytest.mark.usefixtures("all_compilers")
class TestTargets:
    @pytest.mark.parametrize(
        ("cluster", "mesh_shape", "topology"),
        [
            ("h100-8x4", (32,), "1x4x8"),
            ("h100-8x4", (4, 8), "1x4x8"),
            ("h100-8", (2, 2), "1x1x4"),
            ("h200", (8,), "1x1x8"),
            ("v100-nvlink", (4,), "1x1x4"),
            ("v5e-4x4", (16,), "v5e:4x4"),
            ("v5p-2x2x2", (2, 4), "v5p:2x2x2"),
            ("tpu-v4-4x4x4", (64,), "v4:4x4x4"),
            ("cpu-8", (8,), ""),
        ],
    )
    def test_topologies(self, cluster, mesh_shape, topology):
        target = find_target(load_cluster(cluster), mesh_shape)
        assert (target.topology, target.num_devices) == (topology, math.prod(mesh_shape))

    def test_a_gpu_is_described(self):
        config = find_target(load_cluster("h100-8"), (8,)).config
        assert "core_count: 132" in config
        assert "memory_bandwidth: 3350000000000" in config
        assert "cuda_compute_capability { major: 9 minor: 0 }" in config

    def test_a_v100_is_compiled_as_the_oldest_chip_that_cuda_13_knows(self):
        assert "major: 7 minor: 5" in find_target(load_cluster("v100-nvlink"), (8,)).config

    def test_every_preset_has_a_compiler(self):
        for name in preset_names():
            cluster = load_cluster(name)
            if not cluster.is_paper_set:
                assert module.find_chip(cluster.name) is not None or name == "cpu"

    @pytest.mark.parametrize(
        ("cluster", "mesh_shape", "message"),
        [
            ("h100-8", (16,), "the mesh has 16 devices, but h100-8 has 8 chips"),
            ("h100-8x4", (12,), "12 devices, which fill no whole number of h100-8x4's hosts of 8. Take a mesh of 8"),
            ("v5e-4x4", (8,), "that of v5e-4x4 is 4x4. Name a slice of 8 chips, or take a mesh of 16"),
        ],
    )
    def test_meshes_that_do_not_fit(self, cluster, mesh_shape, message):
        with pytest.raises(ClusterError, match=message):
            find_target(load_cluster(cluster), mesh_shape)

    def test_a_last_host_that_is_not_full(self):
        """The levels of a file may have room for more chips than there are."""
        cluster = replace(load_cluster("cpu-8"), num_chips=6)
        with pytest.raises(ClusterError, match="the mesh has 8 devices, but cpu-8 has 6 chips"):
            find_target(cluster, (8,))


def test_a_plugin_of_another_version(monkeypatch):
    monkeypatch.setattr(module, "_is_installed", lambda name: True)
    monkeypatch.setattr(module, "_version", lambda package: "0.1" if "cuda13" in package else None)
    wanted = rf"but found jax-cuda13-plugin 0.1, .* pip install jax-cuda13-plugin=={module.jaxlib.__version__} "
    with pytest.raises(InfeasibleError, match=wanted):
        find_target(load_cluster("h100-8"), (8,))


class TestMissingCompilers:
    @pytest.fixture(autouse=True)
    def no_compilers(self, monkeypatch):
        monkeypatch.setattr(module, "_is_installed", lambda name: False)

    def test_cuda(self):
        with pytest.raises(InfeasibleError, match=r"pip install 'jaxquard\[cuda-compiler\]'"):
            find_target(load_cluster("h100-8"), (8,))

    def test_tpu(self, monkeypatch):
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        with pytest.raises(InfeasibleError, match=r"pip install 'jaxquard\[tpu\]'"):
            find_target(load_cluster("v5e-4x4"), (16,))

    def test_a_machine_for_which_there_is_no_libtpu(self, monkeypatch):
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        with pytest.raises(InfeasibleError, match="exists for x86-64 only, but this machine is aarch64"):
            find_target(load_cluster("v5e-4x4"), (16,))

    def test_the_cpu_needs_none(self):
        assert find_target(load_cluster("cpu-8"), (8,)).platform == "cpu"
