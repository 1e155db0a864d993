"""The host overhead of a step: measured on its arguments, and part of a price of whole tasks."""

import math

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.host_overhead import price_host_overhead
from jaxquard.planner.search.measured_host import MeasuredHost
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.price_tasks import price_tasks
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.planner.step.apply_plan import apply_plan
from jaxquard.pricing import Price, PriceCache, Provenance

FAKE = Provenance(pricer="fake", jax_version="", platform="", device_kind="", num_devices=0, date="", num_runs=0)


def problem_of(num_layers):
    """A step with so many weights, each with two moments."""

    def loss(params, batch):
        x = batch
        for weight in params:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x)

    params = [jax.ShapeDtypeStruct((4, 4), jnp.float32)] * num_layers
    return loss_problem(loss, optax.adam(0.1), (params, jax.ShapeDtypeStruct((8, 4), jnp.float32)))[0]


def find(problem, **fix):
    target = find_plan_target(cluster="cpu-4", devices=None, runtime="in_process")
    return find_plan(problem, target, PlanOptions(num_measured=0, cache=None, fix=fix))


def price_of(problem, *, cache=None, **fix):
    applied = apply_plan(problem.step, problem.args, find(problem, microbatches=2, **fix))
    return price_host_overhead(problem, applied, cache=cache)


@pytest.mark.parametrize("fix", [{"stages": 1}, {"stages": 2, "mesh": {"data": 2}}])
def test_more_state_has_more_of_it(fix):
    """Also in a pipeline, whose state is on several actors: the host binds all of it."""
    few, many = (price_of(problem_of(num_layers), **fix) for num_layers in (2, 64))
    assert 0 < few.time_s < many.time_s
    assert many.provenance.num_runs >= 5


def test_it_is_kept_for_the_same_arguments(tmp_path):
    cache = PriceCache(tmp_path)
    problem = problem_of(2)
    first = price_of(problem, cache=cache, stages=1, mesh={"data": 4})
    assert price_of(problem_of(2), cache=cache, stages=1, mesh={"data": 4}) == first
    assert len(list(tmp_path.glob("price-*.json"))) == 1
    # Other shardings, other leaves.
    price_of(problem, cache=cache, stages=1, mesh={"data": 2, "model": 2})
    price_of(problem_of(3), cache=cache, stages=1, mesh={"data": 4})
    assert len(list(tmp_path.glob("price-*.json"))) == 3


class OneSecondPricer:
    """Every task takes a second."""

    def price_all(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
        return [Price(time_s=1.0, peak_bytes=0, spread=None, provenance=FAKE) for _ in programs]


def test_a_price_of_whole_tasks_has_it():
    price = Price(time_s=0.25, peak_bytes=0, spread=None, provenance=FAKE)
    problem = problem_of(2)
    plan = find(problem, stages=1, microbatches=1)
    without = price_tasks(problem, plan, OneSecondPricer(), links={})
    host = MeasuredHost(price_overhead=lambda problem, applied: price)
    played = price_tasks(problem, plan, OneSecondPricer(), links={}, host=host)
    assert (without.host_s, played.host_s) == (0.0, 0.25)
    assert played.time_s == without.time_s + 0.25
