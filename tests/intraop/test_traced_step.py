"""Which arguments are state."""

import jax
import jax.numpy as jnp

from jaxquard.intraop.traced_step import trace_step

ROWS = jax.ShapeDtypeStruct((8, 4), jnp.float32)
WEIGHT = jax.ShapeDtypeStruct((4, 4), jnp.float32)


def test_params_and_optimizer_state_are_state_and_a_batch_is_not():
    def step(params, moments, batch):
        loss = jnp.sum(batch["x"] @ params["w"])
        return params, jax.tree.map(lambda leaf: leaf * 0.9, moments), loss

    traced = trace_step(step, ({"w": WEIGHT}, {"w": WEIGHT}, {"x": ROWS}))
    assert traced.result_of_input == (0, 1, None)


def test_a_batch_with_the_type_of_a_result_is_data():
    def step(params, x):
        return {"w": params["w"] * 0.9}, jnp.tanh(x @ params["w"])

    assert trace_step(step, ({"w": WEIGHT}, ROWS)).result_of_input == (0, None)


def test_a_learning_rate_is_not_paired_with_the_loss():
    def step(params, rate):
        return {"w": params["w"] * rate}, jnp.sum(params["w"])

    assert trace_step(step, ({"w": WEIGHT}, 0.1)).result_of_input == (0, None)


def test_a_state_that_is_one_array_is_the_first_argument():
    def step(weight, x):
        return weight * 0.9, jnp.sum(x @ weight)

    traced = trace_step(step, (WEIGHT, ROWS))
    assert traced.result_of_input == (0, None)
    assert traced.input_names == ("argument 0", "argument 1")
