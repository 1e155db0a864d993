"""The devices that strategies are measured on."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AbstractMesh

from jaxquard.errors import PlanError
from jaxquard.planner.search.find_plan import PlanOptions, find_plan
from jaxquard.planner.search.pricers import make_pricers
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.targets import find_plan_target


def measured_mesh(target, **axes):
    with make_pricers("measure", target, cache=None) as make_pricer:
        return make_pricer(AbstractMesh(tuple(axes.values()), tuple(axes))).mesh


def test_programs_are_measured_on_the_devices_of_an_actor():
    target = find_plan_target(cluster=None, devices=8, runtime="in_process")
    assert dict(measured_mesh(target, data=2, model=2).shape) == {"data": 2, "model": 2}
    assert dict(measured_mesh(target, data=1).shape) == {"data": 1}


def test_fewer_devices_here_than_the_plan_has(monkeypatch):
    here = jax.devices()
    target = find_plan_target(cluster=None, devices=8, runtime="in_process")
    monkeypatch.setattr(jax, "devices", lambda *_: here[:4])
    assert dict(measured_mesh(target, data=2).shape) == {"data": 2}
    with pytest.raises(PlanError, match="an actor of 8 devices cannot be measured on 4"):
        measured_mesh(target, data=8)


def two_products():
    """Returns a step of two products, of which each can be a stage."""

    def loss(params, batch):
        hidden = jnp.tanh(batch["x"] @ params["up"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    width = 16
    weights = jax.ShapeDtypeStruct((width, width), jnp.float32)
    rows = jax.ShapeDtypeStruct((32, width), jnp.float32)
    return loss_problem(loss, optax.sgd(1e-3), ({"up": weights, "down": weights}, {"x": rows, "y": rows}))[0]


def measured_plan(num_devices, **fix):
    target = find_plan_target(cluster=None, devices=num_devices, runtime="in_process")
    options = PlanOptions(pricer="measure", num_measured=0, num_whole=0, cache=None, fix=fix)
    return find_plan(two_products(), target, options)


def test_a_pipeline_is_planned_by_measured_prices():
    plan = measured_plan(4, stages=2, microbatches=4)
    assert (plan.num_actors, plan.num_devices) == (2, 4)
    assert plan.time_s > 0
    assert plan.provenance.startswith("measured on 2 x cpu")


def test_actors_on_other_hosts_are_measured_on_the_devices_of_one(monkeypatch):
    """A mesh that needs more devices than are here is left out, and a note says so."""
    here = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda *_: here[:2])
    plan = measured_plan(4, stages=2, microbatches=4, data=2)
    assert (plan.num_actors, plan.num_devices) == (2, 4)
    assert plan.provenance.startswith("measured on 2 x cpu")
    assert any("a mesh of {'data': 4}: an actor of 4 devices cannot be measured on 2." in note for note in plan.notes)
    with pytest.raises(PlanError, match=r"has a price: an actor of 4 devices cannot be measured on 2\. Use the pricer"):
        measured_plan(4, actors=1, microbatches=4, data=4)
