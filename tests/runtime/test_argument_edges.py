"""Arguments at the edges of what `jax.jit` takes: scalars, names, None, keys, foreign and shared arrays."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxquard as jq

SCHEDULE = jq.schedules.OneFOneB(2)
BATCH = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)


def make_params(dtype=jnp.float32):
    return {"a": jnp.ones((4, 4), dtype) * 0.1, "b": jnp.ones((4, 4), dtype) * 0.2}


def loss_fn(params, x):
    return jnp.mean((jq.pipeline_yield(jnp.tanh(x @ params["a"])) @ params["b"]) ** 2)


def grads_of(params, batch):
    def microbatch_grads(x):
        value, grads = jax.value_and_grad(loss_fn)(params, x)
        return grads, value

    return jq.accumulate_grads(microbatch_grads, SCHEDULE)(batch)


def train_step(params, batch, rate=0.1):
    grads, losses = grads_of(params, batch)
    return jax.tree.map(lambda param, grad: param - rate * grad, params, grads), losses


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh((2,), spmd_mesh=(2,), spmd_axis_names=("data",)) as mesh:
        yield mesh


def test_a_python_number_is_weakly_typed_as_under_jit(mesh):
    params, _ = mesh.distributed(train_step)(make_params(jnp.bfloat16), BATCH.astype(jnp.bfloat16), 0.1)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}


def test_arguments_by_name_get_the_shardings_of_their_positions(mesh):
    step = mesh.distributed(train_step, in_shardings=(PartitionSpec(), PartitionSpec(None, "data"), None))
    by_name = step.lower(batch=BATCH, params=make_params())
    assert str(by_name) == str(step.lower(make_params(), BATCH))


def test_keyword_only_arguments_with_shardings_are_refused(mesh):
    step = mesh.distributed(lambda params, *, batch: grads_of(params, batch), in_shardings=(PartitionSpec(),))
    with pytest.raises(TypeError, match="'batch' was passed by name"):
        step.lower(make_params(), batch=BATCH)


def test_none_in_state_with_shardings(mesh):
    step = mesh.distributed(
        lambda state, batch: ({**state, "p": train_step(state["p"], batch)[0]}, batch.sum()),
        in_shardings=(PartitionSpec(), PartitionSpec(None, "data")),
        out_shardings=(PartitionSpec(), None),
    )
    state, _ = step({"p": make_params(), "empty": None}, BATCH)
    assert state["empty"] is None


def test_optimizer_state_is_sharded_as_its_parameters_are(mesh):
    def step(params, moments, batch):
        grads, losses = grads_of(params, batch)
        moments = jax.tree.map(lambda moment, grad: 0.9 * moment + grad, moments, grads)
        return jax.tree.map(lambda param, moment: param - moment, params, moments), moments, losses

    specs = ({"a": PartitionSpec("data"), "b": PartitionSpec(None, "data")}, None, PartitionSpec(None, "data"))
    distributed = mesh.distributed(step, in_shardings=specs, donate_argnums=(0, 1))
    zeros = jax.tree.map(jnp.zeros_like, make_params())
    _, moments, _ = distributed(make_params(), zeros, BATCH)
    assert moments["a"].placement[0].spec == PartitionSpec("data")
    assert moments["b"].placement[0].spec == PartitionSpec(None, "data")


def test_random_keys_are_returned(mesh):
    step = mesh.distributed(lambda key, params, batch: (jax.random.fold_in(key, 1), grads_of(params, batch)[1]))
    key, _ = step(jax.random.key(3), make_params(), BATCH)
    expected = jax.random.key_data(jax.random.fold_in(jax.random.key(3), 1))
    np.testing.assert_array_equal(np.asarray(key), expected)
    np.testing.assert_array_equal(jax.random.key_data(key.fetch()), expected)


def test_the_precision_of_products_is_part_of_the_signature(mesh):
    step = mesh.distributed(grads_of)
    step(make_params(), BATCH)
    with jax.default_matmul_precision("highest"):
        step(make_params(), BATCH)
    assert len(step._ready) == 2


def test_a_step_under_jit_is_refused(mesh):
    with pytest.raises(TypeError, match="called under a JAX transformation"):
        jax.jit(mesh.distributed(train_step))(make_params(), BATCH)


def test_a_string_is_refused(mesh):
    with pytest.raises(TypeError, match="found 'adam' of type str"):
        mesh.distributed(train_step)(make_params(), "adam")


def test_donated_arrays_that_two_actors_on_one_device_take():
    with jq.RemoteMesh((2,), devices=jax.devices()[:1], share_devices=True) as mesh:

        def step(state, batch):
            params, losses = train_step(state["params"], batch, state["rate"])
            return {"params": params, "rate": state["rate"] * 0.99}, losses

        distributed = mesh.distributed(step, donate_argnums=0)
        for _ in range(5):
            state, losses = distributed({"params": make_params(), "rate": jnp.asarray(0.1)}, BATCH)
            assert np.isfinite(np.asarray(losses)).all()
            assert float(state["rate"]) == pytest.approx(0.099)


def test_an_unfinished_result_of_another_mesh_is_waited_for(mesh):
    def slow(x):
        time.sleep(0.2)
        return np.asarray(x)

    def slow_step(params, batch):
        params, losses = train_step(params, batch)
        return jax.tree.map(lambda leaf: jax.pure_callback(slow, leaf, leaf), params), losses

    with jq.RemoteMesh((2,)) as other:
        params, _ = other.distributed(slow_step)(make_params(), BATCH)
        found, _ = mesh.distributed(train_step)(params, BATCH)
        expected, _ = jax.jit(train_step)(*jax.jit(train_step)(make_params(), BATCH)[:1], BATCH)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), jax.device_get(found), expected)


def test_init_takes_plain_arguments_by_name(mesh):
    state = mesh.init(lambda key, *, size: jax.random.normal(key, (size,)), jax.random.key(0), size=3)
    np.testing.assert_allclose(state, jax.random.normal(jax.random.key(0), (3,)))
