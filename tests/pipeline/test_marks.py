import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.pipeline.marks import MarkRole, mark_p
from tests.pipeline.planning import trace


def mark_roles(fn, *args):
    """The roles of the marks in a traced function, in order."""
    step, _ = trace(fn, *args)
    return [equation.params["role"] for equation in step.jaxpr.eqns if equation.primitive is mark_p]


def test_a_mark_is_the_identity():
    x = jnp.arange(3.0)
    assert jq.pipeline_yield(x) is x
    np.testing.assert_array_equal(jax.jit(jq.pipeline_yield)(x), x)


def test_values_of_any_dtype_and_structure():
    values = {
        "float": jnp.ones(2),
        "half": jnp.ones(2, jnp.bfloat16),
        "int": jnp.arange(2),
        "bool": jnp.array([True, False]),
        "key": jax.random.key(0),
        "none": None,
        "number": 3,
    }
    marked = jax.jit(jq.pipeline_yield)(values)
    assert jax.tree.structure(marked) == jax.tree.structure(values)
    for name, value in values.items():
        if value is not None:
            assert marked[name].dtype == jnp.asarray(value).dtype
    assert marked["key"] == values["key"]


def test_several_values_come_back_as_a_tuple():
    first, second = jq.pipeline_yield(jnp.ones(2), {"a": jnp.zeros(3)})
    assert first.shape == (2,)
    assert second["a"].shape == (3,)


def test_a_mark_without_a_value():
    with pytest.raises(TypeError, match=r"pipeline_yield\(\) needs at least one value: the one that ends the stage"):
        jq.pipeline_yield()


def test_gradients_pass_through_and_leave_a_twin():
    def loss(x):
        hidden, count = jq.pipeline_yield(jnp.sin(x), jnp.arange(2))
        return jnp.sum(hidden * count)

    x = jnp.array([0.3, 0.4])
    np.testing.assert_allclose(jax.grad(loss)(x), [0.0, np.cos(0.4)], rtol=1e-6)
    assert mark_roles(jax.grad(loss), x) == [MarkRole.PRIMAL, MarkRole.COTANGENT]


def test_forward_mode_and_second_derivatives():
    def fn(x):
        return jq.pipeline_yield(jnp.sin(x)) ** 2

    value, tangent = jax.jvp(fn, (0.3,), (1.0,))
    np.testing.assert_allclose(value, np.sin(0.3) ** 2, rtol=1e-6)
    np.testing.assert_allclose(tangent, np.sin(0.6), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(jax.grad(fn))(0.3), 2 * np.cos(0.6), rtol=1e-6)


def test_batching():
    marked = jax.vmap(lambda x, y: jq.pipeline_yield(x, y), in_axes=(0, None), out_axes=(0, None))
    first, second = marked(jnp.ones((3, 2)), jnp.zeros(4))
    assert (first.shape, second.shape) == ((3, 2), (4,))


def test_a_mark_of_a_frozen_value_has_no_twin():
    def loss(x):
        return jnp.sum(jq.pipeline_yield(jax.lax.stop_gradient(x)) * x)

    assert mark_roles(jax.grad(loss), jnp.ones(2)) == [MarkRole.PRIMAL]


def test_task_is_a_stage_with_the_name_of_its_function():
    @jq.task
    def embed(x, *, scale):
        """Doc."""
        return {"hidden": x * scale}

    def head(hidden):
        return hidden["hidden"] + 1

    def model(x):
        return jq.task(head, name="the_head")(embed(x, scale=2.0))

    assert embed.__name__ == "embed"
    np.testing.assert_array_equal(model(jnp.ones(2)), [3.0, 3.0])
    step, _ = trace(model, jnp.ones(2))
    marks = [equation.params["mark"] for equation in step.jaxpr.eqns if equation.primitive is mark_p]
    assert [mark.name for mark in marks] == ["embed", "the_head"]
    assert all(mark.source.startswith("test_marks.py:") for mark in marks)


def test_a_mark_knows_the_users_line():
    step, _ = trace(lambda x: jq.pipeline_yield(x, name="here"), jnp.ones(2))
    (equation,) = step.jaxpr.eqns
    line = test_a_mark_knows_the_users_line.__code__.co_firstlineno + 1
    assert repr(equation.params["mark"]) == f"here@test_marks.py:{line}"
