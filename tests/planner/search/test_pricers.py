"""The devices that strategies are measured on."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxquard.errors import PlanError
from jaxquard.planner.search.find_plan import PlanOptions, find_plan
from jaxquard.planner.search.pricers import make_pricers
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.pricing.program.sharded_program import ShardedProgram


def measured_mesh(target, **axes):
    with make_pricers("measure", target, cache=None) as make_pricer:
        return make_pricer(AbstractMesh(tuple(axes.values()), tuple(axes))).mesh


def test_all_actors_of_a_host_run_what_is_measured():
    target = find_plan_target(cluster=None, devices=8, runtime="in_process")
    assert dict(measured_mesh(target, data=2, model=2).shape) == {"actors": 2, "data": 2, "model": 2}
    assert dict(measured_mesh(target, data=1).shape) == {"actors": 8, "data": 1}
    assert dict(measured_mesh(target, data=2, model=4).shape) == {"data": 2, "model": 4}


def test_a_shard_map_over_an_actor_is_measured_on_all_of_them():
    """So 2D products are written, and sorted rows of experts; jitted functions inside of it name its mesh too."""
    target = find_plan_target(cluster=None, devices=8, runtime="in_process")
    mesh = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def multiply(x, w):
        return jax.lax.psum(jnp.clip(x @ w, -1, 1) * jax.lax.axis_index("model"), "model")

    specs = PartitionSpec("data", "model"), PartitionSpec("model"), PartitionSpec("data")
    mapped = jax.shard_map(multiply, mesh=mesh, in_specs=specs[:2], out_specs=specs[2])
    w = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    jaxpr = jax.make_jaxpr(lambda x, w: [mapped(x, w)])(w, w)
    program = ShardedProgram(name="x @ w", jaxpr=jaxpr, in_specs=specs[:2], out_specs=specs[2:])
    with make_pricers("measure", target, cache=None) as make_pricer:
        pricer = make_pricer(mesh)
        assert pricer.price(program).time_s > 0
        assert pricer.mesh.size == 8


def test_actors_elsewhere_do_not():
    target = find_plan_target(cluster=None, devices=8, runtime="in_process")
    on_ray = dataclasses.replace(target, runtime="ray")
    assert dict(measured_mesh(on_ray, data=2, model=2).shape) == {"data": 2, "model": 2}


def test_fewer_devices_here_than_the_plan_has(monkeypatch):
    here = jax.devices()
    target = find_plan_target(cluster=None, devices=8, runtime="in_process")
    monkeypatch.setattr(jax, "devices", lambda *_: here[:4])
    assert dict(measured_mesh(target, data=2).shape) == {"actors": 2, "data": 2}
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
    assert plan.provenance.startswith("measured on 4 x cpu")


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
