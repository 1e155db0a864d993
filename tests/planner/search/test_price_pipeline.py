"""Pipelines on virtual devices: their price is that of the program as it runs."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxquard.errors import PricingError
from jaxquard.planner.search import measure_plans as measure_plans_module
from jaxquard.planner.search import price_pipeline as price_pipeline_module
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.measure_plans import measure_plans
from jaxquard.planner.search.measured_host import MeasuredHost, find_measured_host
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.price_tasks import price_tasks
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.pricing import Price, PriceCache, Provenance

FAKE = Provenance(pricer="fake", jax_version="", platform="", device_kind="", num_devices=0, date="", num_runs=0)
PIPELINE = {"stages": 2, "microbatches": 4, "schedule": "1f1b", "mesh": {"data": 2}}


def loss(params, batch):
    for weight in params:
        batch = jnp.tanh(batch @ weight)
    return jnp.mean(batch)


def plan_of(loss, *, loss_reduction=None, **fix):
    """Returns a step of four layers, and its plan on four devices."""
    params, batch = [jax.ShapeDtypeStruct((4, 4), jnp.float32)] * 4, jax.ShapeDtypeStruct((8, 4), jnp.float32)
    problem, _ = loss_problem(loss, optax.adam(0.1), (params, batch), loss_reduction=loss_reduction)
    target = find_plan_target(cluster="cpu-4", devices=None, runtime="in_process")
    return problem, find_plan(problem, target, PlanOptions(num_measured=0, cache=None, fix=fix))


def here(*, devices=4, runtime="in_process", **options):
    return find_measured_host(find_plan_target(cluster=None, devices=devices, runtime=runtime), **options)


class NoPricer:
    """Tasks of these actors are not priced."""

    def price_all(self, programs, **_):
        raise AssertionError([one.name for one in programs])


class OneSecondPricer:
    """Every task takes a second."""

    def price_all(self, programs, *, groups=None, on_progress=None):
        return [Price(time_s=1.0, peak_bytes=0, spread=None, provenance=FAKE) for _ in programs]


@pytest.mark.parametrize(
    ("devices", "runtime", "found"),
    [(8, "in_process", (True, True)), (64, "in_process", (True, False)), (8, "ray", (False, False))],
    ids=["devices of this process", "more than are here", "processes"],
)
def test_who_shares_the_cores(devices, runtime, found):
    assert len(jax.devices()) == 8
    host = here(devices=devices, runtime=runtime, cache=None)
    assert (host is not None, host is not None and host.price_pipeline is not None) == found


def test_it_waits_for_what_its_tasks_wait_for():
    """Each of the 4 microbatches sleeps for 20 ms on both actors, of which one may while the other works."""

    def wait(x):
        time.sleep(0.02)
        return np.asarray(x)

    @jax.custom_jvp
    def slow(x):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct((), x.dtype), x)

    slow.defjvp(lambda primals, tangents: (slow(*primals), tangents[0]))

    def slow_loss(params, batch):
        for weight in params[:2]:
            batch = jnp.tanh(batch @ weight)
        batch = batch + slow(0 * jnp.sum(batch))
        for weight in params[2:]:
            batch = jnp.tanh(batch @ weight)
        return jnp.mean(batch + slow(0 * jnp.sum(batch)))

    problem, plan = plan_of(slow_loss, loss_reduction="per_microbatch", **PIPELINE)
    played = price_tasks(problem, plan, NoPricer(), links={}, host=here(cache=None))
    assert played.time_s > 4 * 0.02
    assert played.source == "measured as its program runs"
    assert played.num_priced == 1


def test_a_step_on_one_actor_is_played():
    problem, plan = plan_of(loss, stages=1, microbatches=1)
    free = Price(time_s=0.0, peak_bytes=0, spread=None, provenance=FAKE)

    def fail(*_):
        raise AssertionError("it has one actor")

    host = MeasuredHost(price_overhead=lambda problem, applied: free, price_pipeline=fail)
    played = price_tasks(problem, plan, OneSecondPricer(), links={}, host=host)
    assert played.time_s == played.num_priced
    assert played.source == "played with the prices of its whole tasks"


def test_it_is_kept_for_the_same_program(tmp_path, monkeypatch):
    calls = []

    def count(*args, **more):
        calls.append(args)
        return measure_plans(*args, **more)

    monkeypatch.setattr(price_pipeline_module, "measure_plans", count)
    cache = PriceCache(tmp_path)

    def price(loss=loss, cache=cache, **fix):
        problem, plan = plan_of(loss, **(PIPELINE | fix))
        return price_tasks(problem, plan, NoPricer(), links={}, host=here(cache=cache)).time_s

    first = price()
    assert price() == first
    assert len(calls) == 1
    # Another schedule, other tasks, and once more.
    price(schedule="gpipe")
    price(loss=lambda params, batch: 2 * loss(params, batch))
    price(cache=None)
    assert len(calls) == 4
    assert price() == first


def test_one_that_does_not_run_has_no_price(monkeypatch):
    def fail(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")

    monkeypatch.setattr(measure_plans_module, "time_loop", fail)
    problem, plan = plan_of(loss, **PIPELINE)
    with pytest.raises(PricingError, match=r"^the pipeline does not run: RESOURCE_EXHAUSTED: out of memory$"):
        price_tasks(problem, plan, NoPricer(), links={}, host=here(cache=None))
