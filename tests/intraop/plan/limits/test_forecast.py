"""Before it starts, a search says how many programs it will price, and how long that may take."""

import logging

import jax
import jax.numpy as jnp
import pytest

from jaxquard.intraop.plan.limits import pricing_pace
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.shardings.baselines import MOST_BASELINES, NUM_STORED_BASELINES, baselines
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing import CompilePricer, MeasuredPricer, RooflinePricer
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.patterns import PATTERNS
from tests.intraop.steps import inputs, mesh_of, sgd, weights

MESH = jax.sharding.AbstractMesh((8,), ("x",))


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(pricing_pace, "num_cores", lambda: 2)


def deep_step():
    """Eight equal layers between two others."""

    def loss(params, x):
        x = x @ params["embed"]
        for number in range(8):
            x = x + jnp.tanh(x @ params[f"up{number}"]) @ params[f"down{number}"]
        return jnp.mean((x @ params["head"]) ** 2)

    layers = {f"up{number}": (64, 256) for number in range(8)} | {f"down{number}": (256, 64) for number in range(8)}
    return sgd(loss), (weights(embed=(32, 64), head=(64, 512), **layers), inputs(16, 32))


class Announced(Exception):
    """The search has said what it will do."""


def announce(pricer, mesh, step=PATTERNS["mlp"], **options):
    """Returns the first report of a search, which ends there."""

    def stop(progress):
        raise Announced(progress)

    with pytest.raises(Announced) as caught:
        search_sharding(*step(), mesh=mesh, pricer=pricer, on_progress=stop, **options)
    return caught.value.args[0]


def measured(**options):
    mesh = mesh_of(x=8)
    with MeasuredPricer(mesh, cache=None) as pricer:
        return announce(pricer, mesh, **options)


def test_programs_finalists_and_loops_are_counted():
    progress = measured()
    assert progress.announcement == (
        "27 programs to price for 1 segment of 1 kind, then at most 20 for finalists and baselines and 6 training "
        "loops: up to about 85 s if none is cached"
    )
    assert (progress.done, progress.total, progress.num_cached) == (0, 47, 0)
    assert 84 < progress.left_s <= 85
    assert measured(loop_budget_s=0).left_s < progress.left_s
    assert "loop" not in measured(loop_budget_s=0).announcement


def test_finalists_take_time_too():
    few = measured(num_finalists=0)
    assert "then at most 8 for finalists and baselines and 2 training loops" in few.announcement
    assert few.left_s < measured().left_s


def test_a_budget_of_time_is_the_most_that_it_takes():
    progress = measured(time_budget_s=10)
    assert progress.announcement.endswith(
        ": up to about 10 s if none is cached; time_budget_s=10 goes to the most important ones"
    )
    assert progress.left_s == 10


def test_compilers_alone_take_less():
    with CompilePricer("cpu-8", MESH, cache=None) as pricer:
        progress = announce(pricer, MESH)
    assert "training loop" not in progress.announcement
    assert 0 < progress.left_s < measured(loop_budget_s=0).left_s


def test_prices_in_closed_form_take_next_to_no_time():
    progress = announce(RooflinePricer("h100-8", MESH), MESH)
    assert progress.announcement.endswith(": next to no time, as prices are in closed form (up to about 1 s)")
    assert progress.left_s < 1


def test_a_custom_pricer_says_nothing_of_time(caplog):
    with caplog.at_level(logging.INFO, logger="jaxquard"):
        progress = announce(FakePricer(), mesh_of(x=8))
    assert progress.left_s is None
    assert progress.announcement == (
        "27 programs to price for 1 segment of 1 kind, then at most 20 for finalists and baselines"
    )
    assert progress.announcement in caplog.text


@pytest.mark.parametrize("limit", [None, 10**9])
@pytest.mark.parametrize("step", [PATTERNS["mlp"], deep_step])
def test_no_more_is_priced_than_was_said(step, limit):
    """Of a short step plans are priced whole, of a long one in pairs."""
    pricer, reports = FakePricer(), []
    search_sharding(*step(), mesh=mesh_of(x=8), pricer=pricer, memory_limit_bytes=limit, on_progress=reports.append)
    assert [bool(report.announcement) for report in reports] == [True] + [False] * (len(reports) - 1)
    assert ("for 1 segment " in reports[0].announcement) == (step is not deep_step)
    most = reports[0].total
    assert reports[1].total < len(dict.fromkeys(pricer.names)) <= most


def test_there_are_no_more_baselines_than_are_counted():
    found = baselines(analyse_step(trace_step(*PATTERNS["mlp"]()), axes={"x": 8}))
    # Context parallelism is one only where attention is the larger part.
    assert len(found) == MOST_BASELINES - 1
    assert sum(one.storage is not Storage.AS_USED for one in found.values()) == NUM_STORED_BASELINES
