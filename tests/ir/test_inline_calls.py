"""Calls and checkpoints are opened: the same numbers, in one list of equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxquard.ir.inline_calls import CallOpener, inline_calls
from jaxquard.ir.jaxpr_tools import evaluate, with_constants_as_inputs
from jaxquard.ir.open_checkpoints import is_transposed, open_checkpoints

X = jnp.arange(4.0) / 4


def primitives(jaxpr):
    return [equation.primitive.name for equation in jaxpr.eqns]


def traced(fn, *args):
    return with_constants_as_inputs(jax.make_jaxpr(fn)(*args))


def test_nested_calls_are_opened():
    @jax.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (cube(x), x), lambda x, g: (3 * g * x**2,))
    fn = lambda x: jax.jit(lambda y: jnp.sin(jax.nn.relu(y)) + cube(y))(x)  # noqa: E731
    jaxpr, constants = inline_calls(*traced(fn, X))
    assert {"sin", "max", "integer_pow", "add"} <= set(primitives(jaxpr))
    assert not {"jit", "pjit", "custom_jvp_call", "custom_vjp_call"} & set(primitives(jaxpr))
    np.testing.assert_array_equal(evaluate(jaxpr)(X, *constants)[0], fn(X))


def test_arrays_that_calls_close_over_become_the_last_inputs():
    table = np.arange(4, dtype=np.float32)
    jaxpr, constants = traced(jax.jit(lambda x: x * table), X)
    inner = jaxpr.eqns[0].params["jaxpr"]
    flat, found = inline_calls(jaxpr, constants)
    assert primitives(flat) == ["mul"]
    assert len(flat.invars) == 1 + len(found)
    assert len(found) == len(constants) + len(inner.consts) == 1
    np.testing.assert_array_equal(evaluate(flat)(X, *found)[0], X * table)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["jit"]),
        ({"ignores_shardings": True}, ["sin"]),
        ({"must_open": lambda equation: equation.params["name"] == "inner"}, ["sin"]),
        ({"must_open": lambda equation: equation.params["name"] == "other"}, ["jit"]),
    ],
    ids=["stay", "ignored", "asked for", "another"],
)
def test_calls_that_carry_shardings(options, names):
    def inner(x):
        return jnp.sin(x)

    sharding = NamedSharding(jax.make_mesh((1,), ("x",)), PartitionSpec())
    jaxpr, _ = traced(jax.jit(inner, in_shardings=sharding), X)
    assert primitives(CallOpener(constants={}, **options).open_all(jaxpr)) == names


def test_checkpoints_are_opened_behind_a_barrier():
    fn = jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x)))
    jaxpr, _ = traced(fn, X)
    assert [is_transposed(equation) for equation in jaxpr.eqns if equation.primitive.name == "remat2"] == [True]
    opened = open_checkpoints(jaxpr, with_barrier=True)
    assert "remat2" not in primitives(opened)
    assert primitives(opened).count("optimization_barrier") == 1
    np.testing.assert_array_equal(evaluate(opened)(X)[0], fn(X))
    assert "optimization_barrier" not in primitives(open_checkpoints(jaxpr, with_barrier=False))
    assert "remat2" in primitives(open_checkpoints(jaxpr, with_barrier=True, is_wanted=lambda _: False))


def test_constants_do_not_go_through_the_barrier():
    fn = lambda w, x: jax.grad(lambda y: jnp.sum(jax.checkpoint(lambda z: jnp.sin(w * z))(y)))(x)  # noqa: E731
    jaxpr, _ = traced(fn, X, X)
    opened = open_checkpoints(jaxpr, with_barrier=True, constants=jaxpr.invars[:1])
    (barrier,) = (equation for equation in opened.eqns if equation.primitive.name == "optimization_barrier")
    assert jaxpr.invars[0] not in barrier.invars
    assert jaxpr.invars[1] in barrier.invars
