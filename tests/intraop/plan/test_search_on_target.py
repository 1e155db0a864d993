"""A search for a cluster that is not here, on a mesh without devices."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import jaxquard as jq
from jaxquard.errors import ShardingError
from jaxquard.pricing import CompilePricer, MeasuredPricer

MESH = AbstractMesh((8,), ("devices",))
ARGS = (jax.ShapeDtypeStruct((32, 64), jnp.float32), jax.ShapeDtypeStruct((64, 32), jnp.float32))


def train_step(weight, batch):
    loss, gradient = jax.value_and_grad(lambda weight: jnp.mean((batch @ weight) ** 2))(weight)
    return weight - 0.1 * gradient, loss


@pytest.mark.slow
def test_a_plan_by_the_compiler_of_the_cpu(tmp_path):
    cache = jq.pricing.PriceCache(tmp_path)
    with CompilePricer("cpu-8", MESH, cache=cache, num_compilers=1) as pricer:
        plan = jq.search_sharding(train_step, ARGS, mesh=MESH, pricer=pricer, num_finalists=0)
    assert plan.mesh is None
    assert plan.provenance.startswith("compiled on 8 x cpu")
    # It runs on devices of that number.
    weight, _ = plan.apply(train_step, donate=False)(jnp.ones((32, 64)), jnp.ones((64, 32)))
    assert weight.shape == (32, 64)


def test_a_mesh_without_devices_needs_a_pricer():
    with pytest.raises(ShardingError, match="the mesh has no devices"):
        jq.search_sharding(train_step, ARGS, mesh=MESH)


def test_a_pricer_that_measures_needs_devices():
    mesh = jax.make_mesh((8,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    with MeasuredPricer(mesh, cache=None) as pricer, pytest.raises(ShardingError, match="the mesh has no devices"):
        jq.search_sharding(train_step, ARGS, mesh=MESH, pricer=pricer)


def test_a_pricer_for_another_mesh():
    pricer = CompilePricer("cpu-8", AbstractMesh((4,), ("devices",)), cache=None)
    with pytest.raises(ShardingError, match="mesh of"):
        jq.search_sharding(train_step, ARGS, mesh=MESH, pricer=pricer)
