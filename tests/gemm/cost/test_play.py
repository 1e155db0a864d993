"""The simulation: equal to closed forms written by hand without memory contention, chip by chip too; slower with it."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.cluster import (
    Axis,
    Cluster,
    Compute,
    Links,
    Memory,
    Network,
    Topology,
    load_cluster,
    preset_names,
)
from jaxquard.gemm.algorithms.registry import ALGORITHMS, mesh_shapes
from jaxquard.gemm.autotune.models import gpt3, megatron_nlg
from jaxquard.gemm.cost.cost import price_product
from jaxquard.gemm.cost.play import play_plan, play_product
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow
from jaxquard.ir.timeline import Track
from tests.few_examples import few_examples
from tests.gemm.closed_forms import product_s
from tests.gemm.cost.play_chips import play_every_chip
from tests.gemm.sized_products import sized_product
from tests.gemm.tune_by_paper import tune_by_paper
from tests.machine_pace import machine_pace

_CLUSTERS = {name: load_cluster(name) for name in preset_names()}
_SIZES = st.integers(1, 64).map(lambda size: 144 * size)
_PRESETS = st.sampled_from(list(_CLUSTERS.values()))
_RINGS = {"": None, "h": Axis.COLUMNS, "v": Axis.ROWS}


def _number(lowest, highest):
    """Of hardware: 0 is among them where nothing is below."""
    return st.floats(lowest, highest, allow_nan=False, allow_subnormal=False)


def _links():
    bandwidth = _number(1e9, 1e12)
    return st.builds(
        Links,
        row_bandwidth_bytes_per_s=bandwidth,
        column_bandwidth_bytes_per_s=bandwidth,
        sync_s=_number(1e-7, 1e-4),
        launch_s=_number(0, 1e-3),
    )


def _any_clusters(*, waits=False):
    """Hardware that nobody has built; some of it may wait for transfers that no product hides."""
    compute = st.builds(
        Compute,
        peak_flops_per_s=st.just(1e15),
        effective_flops_per_s=_number(1e12, 1e15),
        half_speed_contracted=_number(0, 500),
        half_speed_output=_number(0, 500),
        output_exposed=_number(0, 1),
        accumulate_slowdown=_number(0, 0.5),
        cast_exposed=_number(0, 2),
        slice_copy_exposed=_number(0, 2),
        systolic_dim=st.sampled_from([0, 128, 256]),
        num_cores=st.sampled_from([0, 1, 8, 132]),
        launch_s=_number(0, 1e-5),
    )
    network = st.builds(
        Network,
        topology=st.sampled_from(Topology),
        is_bidirectional=st.booleans(),
        launches_each_permute=st.booleans(),
        hides_one_collective=st.booleans() if waits else st.just(False),
        has_broadcast=st.booleans(),
        chips_per_node=st.sampled_from([0, 2, 4, 8]),
        between_nodes_bandwidth_bytes_per_s=st.one_of(st.just(0.0), _number(1e9, 1e12)),
        between_nodes_sync_s=_number(0, 1e-4),
    )
    return st.builds(
        Cluster,
        name=st.just("any"),
        num_chips=st.just(4096),
        compute=compute,
        memory=st.builds(Memory, size_bytes=st.just(2**40), bandwidth_bytes_per_s=_number(1e11, 1e13)),
        network=network,
        all_gather=_links(),
        reduce_scatter=_links(),
        permute=_links(),
    )


@st.composite
def _cases(draw, algorithms=tuple(ALGORITHMS), num_chips=(1, 4, 9, 16), clusters=_PRESETS):
    algorithm = draw(st.sampled_from(algorithms))
    meshes = [mesh for count in num_chips for mesh in mesh_shapes(algorithm, count)]
    return {
        "cluster": draw(clusters),
        "product": sized_product(
            dataflow=draw(st.sampled_from(Dataflow)),
            m=draw(_SIZES),
            k=draw(_SIZES),
            n=draw(_SIZES),
            item_bytes=draw(st.sampled_from([2, 4])),
        ),
        "algorithm": algorithm,
        "mesh_shape": draw(st.sampled_from(meshes)),
        "options": AlgorithmOptions(
            slices=draw(st.sampled_from([1, 2, 3, 4, 6, 12])),
            ring=_RINGS[draw(st.sampled_from(sorted(_RINGS)))],
            bidirectional=draw(st.booleans()),
            num_packets=draw(st.sampled_from([1, 2, 3, 8])),
        ),
    }


def _by_hand_s(cluster, product, *, options, **case):
    """The oracle, which knows no class of the package."""
    (side,) = (side for side, axis in _RINGS.items() if axis is options.ring)
    sizes = {"m": product.m, "k": product.k, "n": product.n, "item_bytes": product.item_bytes}
    how = {"num_slices": options.slices, "bidirectional": options.bidirectional, "num_packets": options.num_packets}
    return product_s(cluster, product.dataflow.value, **sizes, **how, ring=side, **case)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@few_examples(8)
@given(data=st.data())
def test_equals_the_closed_forms(algorithm, data):
    """Both the simulation and the price, on hardware of any kind."""
    chips = (1, 2, 4, 6, 8, 9, 12, 16)
    case = data.draw(_cases(algorithms=(algorithm,), num_chips=chips, clusters=_any_clusters(waits=True)))
    expected = _by_hand_s(**case)
    assert price_product(**case).time_s == pytest.approx(expected, rel=1e-9)
    assert play_product(**case).time_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.thin(2)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dataflow", Dataflow)
def test_equals_the_closed_forms_everywhere(algorithm, dataflow):
    product = sized_product(dataflow=dataflow, m=16384, k=6144, n=12288)
    for cluster in _CLUSTERS.values():
        for mesh in mesh_shapes(algorithm, 16):
            for slices in (1, 2, 5, 16):
                options = AlgorithmOptions(slices=slices, bidirectional=True)
                case = {"algorithm": algorithm, "mesh_shape": mesh, "options": options}
                expected = _by_hand_s(cluster, product, **case)
                assert price_product(cluster, product, **case).time_s == pytest.approx(expected, rel=1e-9)
                assert play_product(cluster, product, **case).time_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("algorithm", ["meshslice", "collective", "wang", "1d_tp", "fsdp"])
@few_examples(8)
@given(data=st.data())
def test_one_chip_stands_for_all(algorithm, data):
    case = data.draw(_cases(algorithms=(algorithm,), num_chips=(4, 6, 8), clusters=_any_clusters()))
    everyone, alone = play_every_chip(**case), play_product(**case)
    assert everyone.time_s == pytest.approx(alone.time_s, rel=1e-9)
    busy = [everyone.busy_s(chip) for chip in range(everyone.num_actors)]
    assert busy == pytest.approx([alone.busy_s(0)] * everyone.num_actors)


@few_examples(8)
@given(case=_cases(algorithms=("cannon",), num_chips=(4, 9, 16), clusters=_any_clusters()))
def test_cannons_farthest_chip_stands_for_all(case):
    """Chips of row or column 0 have less to skew, but all wait for the farthest."""
    everyone, alone = play_every_chip(**case), play_product(**case)
    assert everyone.time_s == pytest.approx(alone.time_s, rel=1e-9)
    sent = [
        sum(span.time_s for span in everyone.spans if span.actor == chip and span.track is Track.TRANSFER)
        for chip in range(everyone.num_actors)
    ]
    most = sum(span.time_s for span in alone.spans if span.track is Track.TRANSFER)
    assert max(sent) <= most * (1 + 1e-9)
    assert min(sent) < most


@pytest.mark.thin(3)
@pytest.mark.parametrize("mesh_shape", [(2, 2), (1, 2), (2, 1), (3, 3), (2, 4), (4, 2), (1, 4)])
@few_examples(8)
@given(data=st.data())
def test_summas_chips_are_never_slower_than_one(mesh_shape, data):
    """A chip need not wait for the end of a broadcast; on a ring of two there is nothing to gain by that."""
    case = data.draw(_cases(algorithms=("summa",), clusters=_any_clusters())) | {"mesh_shape": mesh_shape}
    everyone, alone = play_every_chip(**case), play_product(**case)
    assert everyone.time_s <= alone.time_s * (1 + 1e-9)
    products_s = sum(span.time_s for span in alone.spans if span.track is Track.COMPUTE)
    assert everyone.time_s >= products_s * (1 - 1e-9)
    if max(mesh_shape) == 2:
        assert everyone.time_s == pytest.approx(alone.time_s, rel=1e-9)


@pytest.mark.parametrize("has_broadcast", [False, True])
def test_a_broadcast_hop_by_hop(has_broadcast):
    """One iteration on a row of 4 chips: the d-th chip sends packet q of the first part in stage d + q.

    As permutes every stage has its launch; as a broadcast the whole has one.
    """
    product = sized_product(dataflow=Dataflow.OS, m=4096, k=4096, n=4096)
    preset, packet = _CLUSTERS["tpu-v4-simulation"], 2 * 4096 * 1024 / 3
    cluster = replace(preset, network=replace(preset.network, has_broadcast=has_broadcast))
    options = AlgorithmOptions(slices=1, num_packets=3)
    timeline = play_every_chip(cluster, product, algorithm="summa", mesh_shape=(1, 4), options=options)
    launch_s = 100e-6
    start_s, stage_s = (launch_s, 6e-6 + packet / 60e9) if has_broadcast else (0.0, launch_s + 6e-6 + packet / 35.2e9)
    sends = [span for span in timeline.spans if span.track is Track.TRANSFER and span.time_s < 0.99 * launch_s]
    stages = {chip: [(span.end_s - start_s) / stage_s for span in sends if span.actor == chip] for chip in range(4)}
    # Every part goes over three of the four links.
    assert sum(map(len, stages.values())) == 4 * 3 * 3
    assert [stages[chip][:3] for chip in range(3)] == [
        pytest.approx([chip + 1, chip + 2, chip + 3]) for chip in range(3)
    ]
    launches = [span for span in timeline.spans if span.track is Track.TRANSFER and span not in sends]
    assert len(launches) == (4 * 4 if has_broadcast else 4 * 3 * 3)


@few_examples(8)
@given(case=_cases())
def test_contention_never_helps(case):
    free, contended = (play_product(**case, memory_contention=on).time_s for on in (False, True))
    assert contended >= free * (1 - 1e-9)


def test_timeline_of_a_product():
    """Figure 4: gathers of both directions run under the products."""
    product = sized_product(dataflow=Dataflow.OS, m=65536, k=12288, n=36864)
    options = AlgorithmOptions(slices=3)
    timeline = play_product(
        _CLUSTERS["tpu-v4-simulation"], product, algorithm="meshslice", mesh_shape=(32, 8), options=options
    )
    assert [span.name for span in timeline.spans if span.track is Track.COMPUTE] == [f"product {i}" for i in range(3)]
    moves = [span.name for span in timeline.spans if span.track is Track.TRANSFER]
    assert sorted(moves) == sorted(f"all_gather {matrix} {i}" for matrix in "AB" for i in range(3))
    spans = {span.name: span for span in timeline.spans}
    assert spans["all_gather A 1"].start_s < spans["product 0"].end_s
    assert sum(span.size_bytes for span in timeline.spans if " A" in span.name) == 7 * 2 * 65536 * 12288 // 256


@pytest.mark.parametrize("model", [gpt3, megatron_nlg])
def test_figures_13_and_14(model):
    """With contention on, the cost model still finds the best mesh and nearly the best slices."""
    problem = model(num_blocks=1)
    tuning = tune_by_paper(problem, memory_limit_bytes=float("inf"))
    played = {row.mesh_shape: play_plan(problem, row.plan, "tpu-v4-simulation")[1] for row in tuning.table}
    assert max(played, key=lambda mesh: played[mesh]) == tuning.best.mesh_shape == (32, 8)
    for row in tuning.table:
        assert 0.9 * row.utilisation < played[row.mesh_shape] <= row.utilisation * (1 + 1e-9)
    by_slices = {}
    for slices in (1, 2, 4, 8, 16):
        row = tune_by_paper(problem, mesh_shape=(32, 8), num_slices=slices, memory_limit_bytes=float("inf")).best
        by_slices[slices] = (row.utilisation, play_plan(problem, row.plan, "tpu-v4-simulation")[1])
    best = max(by_slices, key=lambda slices: by_slices[slices][0])
    assert by_slices[best][1] >= 0.98 * max(played for _, played in by_slices.values())


@pytest.mark.thin(2)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_4096_chips_are_quick(algorithm):
    """All products of a block, with memory contention; what other processes take does not count."""
    problem = gpt3(batch=2048)
    plan = tune_by_paper(problem, num_chips=4096, algorithm=algorithm, memory_limit_bytes=float("inf")).plan
    start_s = time.process_time()
    time_s, utilisation = play_plan(problem, plan, "tpu-v4-simulation")
    # Aim: 1 s.
    assert time.process_time() - start_s < 5 * machine_pace()
    assert time_s > 0
    assert (0.2 if algorithm == "meshslice" else 0.0) < utilisation < 0.6
