"""The simulation: equal to the closed forms without memory contention, chip by chip too; slower with it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.cluster import load_cluster, preset_names
from jaxquard.errors import GemmError
from jaxquard.gemm.autotune import autotune
from jaxquard.gemm.autotune_models import gpt3, megatron_nlg
from jaxquard.gemm.cost import price_product
from jaxquard.gemm.cost_algorithms import ALGORITHMS, mesh_shapes
from jaxquard.gemm.cost_product import SizedProduct
from jaxquard.gemm.play import play_plan, play_product
from jaxquard.gemm.play_chips import play_every_chip
from jaxquard.gemm.problem import Dataflow
from jaxquard.ir.timeline import Track

_CLUSTERS = {name: load_cluster(name) for name in preset_names()}
_SIZES = st.integers(1, 64).map(lambda size: 144 * size)


@st.composite
def _cases(draw, algorithms=ALGORITHMS, num_chips=(1, 4, 9, 16)):
    algorithm = draw(st.sampled_from(algorithms))
    return {
        "cluster": _CLUSTERS[draw(st.sampled_from(sorted(_CLUSTERS)))],
        "product": SizedProduct(
            dataflow=draw(st.sampled_from(Dataflow)), m=draw(_SIZES), k=draw(_SIZES), n=draw(_SIZES)
        ),
        "algorithm": algorithm,
        "mesh_shape": draw(st.sampled_from(mesh_shapes(algorithm, draw(st.sampled_from(num_chips))))),
        "num_slices": draw(st.sampled_from([1, 2, 3, 4, 6, 12])),
    }


@given(case=_cases())
def test_equals_the_closed_forms(case):
    assert play_product(**case).time_s == pytest.approx(price_product(**case).time_s, rel=1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dataflow", Dataflow)
def test_equals_the_closed_forms_everywhere(algorithm, dataflow):
    product = SizedProduct(dataflow=dataflow, m=16384, k=6144, n=12288)
    for cluster in _CLUSTERS.values():
        for mesh in mesh_shapes(algorithm, 16):
            for slices in (1, 2, 5, 16):
                case = {"algorithm": algorithm, "mesh_shape": mesh, "num_slices": slices}
                expected = price_product(cluster, product, **case).time_s
                assert play_product(cluster, product, **case).time_s == pytest.approx(expected, rel=1e-9)


@given(case=_cases(algorithms=("meshslice", "collective", "wang", "1d_tp", "fsdp"), num_chips=(4, 6, 8)))
def test_one_chip_stands_for_all(case):
    everyone = play_every_chip(**case)
    alone = play_product(**case)
    assert everyone.time_s == pytest.approx(alone.time_s, rel=1e-9)
    busy = [everyone.busy_s(chip) for chip in range(everyone.num_actors)]
    assert busy == pytest.approx([alone.busy_s(0)] * everyone.num_actors)


@given(case=_cases())
def test_contention_never_helps(case):
    free, contended = (play_product(**case, memory_contention=on).time_s for on in (False, True))
    assert contended >= free * (1 - 1e-9)


def test_timeline_of_a_product():
    """Figure 4: gathers of both directions run under the products."""
    product = SizedProduct(dataflow=Dataflow.OS, m=65536, k=12288, n=36864)
    timeline = play_product(_CLUSTERS["tpu-v4"], product, algorithm="meshslice", mesh_shape=(32, 8), num_slices=3)
    assert [span.name for span in timeline.spans if span.track is Track.COMPUTE] == [f"product {i}" for i in range(3)]
    moves = [span.name for span in timeline.spans if span.track is Track.TRANSFER]
    assert sorted(moves) == sorted(f"all_gather {matrix} {i}" for matrix in "AB" for i in range(3))
    spans = {span.name: span for span in timeline.spans}
    assert spans["all_gather A 1"].start_s < spans["product 0"].end_s
    assert sum(span.size_bytes for span in timeline.spans if " A" in span.name) == 7 * 2 * 65536 * 12288 // 256


def test_every_chip_needs_rings():
    product = SizedProduct(dataflow=Dataflow.OS, m=64, k=64, n=64)
    with pytest.raises(GemmError, match=r"every chip is played for meshslice, .* summa has others. Use `play_product`"):
        play_every_chip(_CLUSTERS["tpu-v4"], product, algorithm="summa", mesh_shape=(2, 2))


@pytest.mark.parametrize("model", [gpt3, megatron_nlg])
def test_figures_13_and_14(model):
    """With contention on, the cost model still finds the best mesh and nearly the best slices."""
    problem = model(num_blocks=1)
    tuning = autotune(problem, memory_limit_bytes=float("inf"))
    played = {row.mesh_shape: play_plan(problem, row.plan, "tpu-v4")[1] for row in tuning.table}
    assert max(played, key=lambda mesh: played[mesh]) == tuning.best.mesh_shape == (32, 8)
    for row in tuning.table:
        assert 0.9 * row.utilisation < played[row.mesh_shape] <= row.utilisation * (1 + 1e-9)
    by_slices = {}
    for slices in (1, 2, 4, 8, 16):
        row = autotune(problem, mesh_shape=(32, 8), num_slices=slices, memory_limit_bytes=float("inf")).best
        by_slices[slices] = (row.utilisation, play_plan(problem, row.plan, "tpu-v4")[1])
    best = max(by_slices, key=lambda slices: by_slices[slices][0])
    assert by_slices[best][1] >= 0.98 * max(played for _, played in by_slices.values())


def test_4096_chips_in_under_a_second():
    problem = gpt3(batch=2048)
    plan = autotune(problem, num_chips=4096).plan
    start = time.perf_counter()
    time_s, utilisation = play_plan(problem, plan, "tpu-v4")
    assert time.perf_counter() - start < 1
    assert time_s > 0
    assert 0.2 < utilisation < 0.6
