"""Traced steps know which arguments are state."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.intraop.step.fingerprint import differences, fingerprint_step, fingerprint_structure
from jaxquard.intraop.step.traced_step import trace_step

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


def test_shapes_of_numpy_arrays_have_the_dtype_that_the_arrays_come_with():
    def step(params, batch):
        return {"w": params["w"] * 0.9}, jnp.sum(params["w"][batch["tokens"]])

    arrays = {"w": np.ones((4, 4))}, {"tokens": np.zeros(8, np.int64)}
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arrays)
    of_arrays, of_shapes = (fingerprint_step(trace_step(step, args)) for args in (arrays, shapes))
    assert of_arrays == of_shapes
    assert dict(of_shapes.types)["argument 1['tokens']"] == "int32[8]"


def test_keys_are_left_as_they_are():
    def step(state, batch):
        return {"key": state["key"], "w": state["w"] * 0.9}, jnp.sum(batch @ state["w"])

    args = {"key": jax.random.key(0), "w": WEIGHT}, ROWS
    assert trace_step(step, args).result_of_input == (0, 1, None)


def test_the_structure_of_a_step_has_no_values_of_float_scalars():
    """Numbers in inner programs count as little; integers, shapes and operations count as before."""

    def step_of(rate, *, power=2, operation=jnp.tanh):
        def step(weight, x):
            weight, _ = jax.lax.scan(lambda now, _: (now * rate, None), weight, None, length=3)
            return weight, jnp.sum(operation(x @ weight)) + rate + x[power, 0]

        return trace_step(step, (WEIGHT, ROWS))

    planned = fingerprint_structure(step_of(0.1))
    assert differences(planned, step_of(0.2)) == ""
    assert differences(fingerprint_step(step_of(0.1)), step_of(0.2)) != ""
    assert "the first that differs is" in differences(planned, step_of(0.2, power=3))
    assert "the first that differs is sin" in differences(planned, step_of(0.2, operation=jnp.sin))
