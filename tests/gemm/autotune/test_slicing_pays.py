"""On a GPU slicing has a price: the autotuner slices where links are slow enough to pay it, and not elsewhere.

Products of an H200 were measured at S = 1, 2, 4, 8 (presets/h200.csv); the time of the links is modelled.
"""

from dataclasses import replace
from importlib import resources

import pytest

from jaxquard.cluster import load_cluster, parse_products_csv, times_of
from jaxquard.gemm import FcLayer, GemmProblem, Stationary
from tests.gemm.tune_by_paper import tune_by_paper

_H200 = load_cluster("h200")
_FILE = resources.files("jaxquard.cluster") / "presets" / "h200.csv"
_MEASURED_S = {(s.m, s.k, s.n, s.num_slices): s.time_s for s in parse_products_csv(_FILE.read_text())}
# The small ones were measured whole.
_SHAPES = sorted({key[:3] for key in _MEASURED_S if key[3] > 1})
_SLICES = (1, 2, 4, 8)


def _loop_s(links_s, product_s, slices):
    """The closed form of MeshSlice: one slice's move, then moves and products side by side."""
    return links_s / slices + (slices - 1) * max(links_s, product_s) / slices + product_s / slices


def _choose(links_s, products_s):
    return min(_SLICES, key=lambda slices: _loop_s(links_s, products_s[slices], slices))


def _regret(shape, links_share):
    """By measured products: the count that the model chooses, its time, and the minimum, both of the whole product."""
    m, k, n = shape
    measured_s = {slices: _MEASURED_S[m, k, n, slices] for slices in _SLICES}
    modelled_s = {slices: times_of(_H200).product(m=m, k=k, n=n, num_slices=slices) for slices in _SLICES}
    links_s = links_share * measured_s[1]
    chosen, best = _choose(links_s, modelled_s), _choose(links_s, measured_s)
    return chosen, _loop_s(links_s, measured_s[chosen], chosen) / _loop_s(links_s, measured_s[best], best)


@pytest.mark.parametrize("links_share", [0.0, 0.1, 0.2])
def test_fast_links(links_share):
    """Links that take up to a fifth of the product: not worth a slice, so the product stays whole."""
    assert {_regret(shape, links_share) for shape in _SHAPES} == {(1, 1.0)}


@pytest.mark.parametrize("links_share", [2.0, 4.0])
def test_slow_links(links_share):
    for shape in _SHAPES:
        chosen, regret = _regret(shape, links_share)
        assert chosen > 1
        assert regret < 1.05


def test_links_in_between():
    """Near where slicing begins to pay, a wrong choice costs little: of 81 cases one is over 5 %."""
    regrets = [_regret(shape, share)[1] for shape in _SHAPES for share in (0.3, 0.5, 1.0)]
    assert sum(regret > 1.05 for regret in regrets) <= 1
    assert max(regrets) < 1.07


def _with_bandwidth(bytes_per_s):
    kinds = {
        kind: replace(
            getattr(_H200, kind), row_bandwidth_bytes_per_s=bytes_per_s, column_bandwidth_bytes_per_s=bytes_per_s
        )
        for kind in ("all_gather", "reduce_scatter", "permute")
    }
    return replace(_H200, network=replace(_H200.network, chips_per_node=0), **kinds)


def _tune(bandwidth_bytes_per_s, *, num_slices=None):
    """A layer of which each of 2x4 chips multiplies (8192, 12288, 12288)."""
    layer = FcLayer(name="fc", in_features=12288, out_features=4 * 12288)
    return tune_by_paper(
        GemmProblem(layers=(layer,), num_rows=2 * 8192),
        _with_bandwidth(bandwidth_bytes_per_s),
        8,
        stationary=Stationary.Y,
        mesh_shape=(2, 4),
        num_slices=num_slices,
    ).best


def test_the_autotuner_leaves_products_whole_where_slicing_does_not_pay():
    best = _tune(3600e9)
    assert best.plan.layers[0].slices == (1, 1, 1)
    assert best.time_s <= 1.05 * best.cost.compute_s


def test_the_autotuner_slices_where_links_are_slow():
    best, whole = _tune(50e9), _tune(50e9, num_slices=1)
    assert min(best.plan.layers[0].slices) > 1
    assert best.time_s < 0.75 * whole.time_s
    assert best.cost.compute_s > whole.cost.compute_s  # slices are not free


def test_the_price_of_slices_is_what_keeps_a_product_whole():
    """Over NVLink, slices that were free, as in the paper, would pay."""
    free = replace(
        _H200.compute, output_exposed=0.0, accumulate_slowdown=0.0, cast_exposed=0.0, slice_copy_exposed=0.0,
        num_cores=0, launch_s=0.0,
    )  # fmt: skip
    layer = FcLayer(name="fc", in_features=12288, out_features=4 * 12288)
    problem = GemmProblem(layers=(layer,), num_rows=2 * 8192)
    as_in_the_paper, as_measured = (
        tune_by_paper(problem, cluster, 8, stationary=Stationary.Y, mesh_shape=(2, 4)).plan.layers[0].slices
        for cluster in (replace(_H200, compute=free), _H200)
    )
    assert as_in_the_paper[0] > 1
    assert as_measured[0] == 1
