"""MeshSlice hides every transfer that can hide, on the TPU's own compiler; where libtpu is installed."""

import re

import pytest

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.pallas_kernel.tiles import choose_tiles
from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.overlap.compile import TOPOLOGIES, compile_product, missing_compiler, topology_mesh
from jaxquard.gemm.overlap.count_hidden import Overlap
from jaxquard.gemm.overlap.report import default_sizes, overlap_report
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow, Kernel

ALL = {dataflow: Overlap(hideable=num, hidden=num) for dataflow, num in (("os", 6), ("ls", 7), ("rs", 7))}
"""With 4 slices, 3 gathers of each matrix that moves, and the sums of all 4."""


@pytest.fixture
def libtpu():
    missing = missing_compiler()
    if missing is not None:
        pytest.skip(missing)


def test_needs_libtpu(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(GemmError, match=r"needs libtpu.*pip install 'jaxquard\[tpu\]'"):
        topology_mesh("v5e:4x8")


def test_other_machines_have_no_libtpu(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(GemmError, match=r"libtpu, which exists for x86-64 only, but this machine is aarch64"):
        topology_mesh("v5e:4x8")


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("topology", ["v5e", "v9:4x4", "v5e:3x5"])
def test_an_unknown_topology_is_answered_with_some_that_are_known(topology):
    with pytest.raises(GemmError, match=f"knows no topology '{topology}'.*Use one such as: {', '.join(TOPOLOGIES)}"):
        topology_mesh(topology)


@pytest.mark.usefixtures("libtpu")
def test_a_mesh_that_does_not_fit():
    with pytest.raises(GemmError, match=r"mesh 4x4 has 16 chips, but topology v5e:4x8 has 32.*such as 8x4"):
        topology_mesh("v5e:4x8", (4, 4))


@pytest.mark.usefixtures("libtpu")
def test_default_sizes_fit():
    mesh = topology_mesh("v5e:4x8")
    assert dict(mesh.shape) == {"rows": 8, "columns": 4}
    assert default_sizes(mesh, AlgorithmOptions(slices=4)) == (16384, 6144, 6144)
    assert default_sizes(mesh, AlgorithmOptions(slices=5)) == (16640, 6400, 6400)


@pytest.mark.usefixtures("libtpu")
def test_meshslice_hides_all_on_v5e():
    seen = []
    report = overlap_report(
        topology_mesh("v5e:4x8", (8, 4)),
        algorithms=["meshslice"],
        on_progress=lambda name, dataflow: seen.append((name, dataflow.value)),
    )
    assert report == {"meshslice": ALL}
    assert seen == [("meshslice", dataflow) for dataflow in ("os", "ls", "rs")]


@pytest.mark.slow
@pytest.mark.usefixtures("libtpu")
def test_meshslice_hides_all_in_a_loop():
    """With 12 slices, the first and the last ones are outside of the loop, and 10 inside."""
    options = AlgorithmOptions(slices=12, split_for_overlap=True)
    report = overlap_report(topology_mesh("v5e:4x8", (8, 4)), algorithms=["meshslice"], options=options)
    counts = {"os": 22, "ls": 23, "rs": 23}
    assert report["meshslice"] == {flow: Overlap(hideable=num, hidden=num) for flow, num in counts.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("topology", ["v4:4x4x2", "v5p:4x4x2", "v6e:4x8"])
def test_meshslice_hides_all(topology):
    mesh = topology_mesh(topology, (8, 4))
    assert overlap_report(mesh, algorithms=["meshslice"]) == {"meshslice": ALL}


@pytest.mark.slow
@pytest.mark.usefixtures("libtpu")
def test_other_algorithms():
    report = overlap_report(topology_mesh("v4:2x2x1"), algorithms=["collective", "wang", "cannon"])
    assert {overlap.hideable for overlap in report["collective"].values()} == {0}
    for by_dataflow in report.values():
        assert all(overlap.hidden <= overlap.hideable for overlap in by_dataflow.values())


@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize(
    "topology",
    ["v5e:4x8", *(pytest.param(other, marks=pytest.mark.slow) for other in ("v4:4x4x2", "v5p:4x4x2", "v6e:4x8"))],
)
def test_the_pallas_kernel_compiles_and_takes_the_vmem_that_its_tiles_do(topology):
    text = compile_product(
        topology_mesh(topology, (8, 4)),
        (16384, 6144, 6144),
        algorithm="meshslice",
        product=Product(dataflow=Dataflow.OS),
        options=AlgorithmOptions(slices=4, kernel=Kernel.PALLAS),
    )
    assert text.count('custom_call_target="tpu_custom_call"') == 1
    assert not re.search(r"all-gather|collective-permute|dot\(|convolution\(", text)
    limit = 12 * 2**20 if topology.startswith("v4") else 32 * 2**20
    tiles = choose_tiles((2048, 1536, 1536), item_bytes=2, unit=(16, 128), vmem_bytes=limit, min_tiles=14)
    assert tiles.vmem_bytes == pytest.approx(vmem_of_kernel(text), rel=0.05)


def vmem_of_kernel(text):
    """Reads the bytes of VMEM that the compiler says the kernel uses."""
    kernel = text[text.index('custom_call_target="tpu_custom_call"') :]
    found = re.search(r'"used_scoped_memory_configs":\[\{"memory_space":"1","offset":"0","size":"(\d+)"', kernel)
    assert found
    return int(found[1])
