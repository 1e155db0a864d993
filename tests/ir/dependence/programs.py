"""Random small programs: values from a few inputs, each step from values that are there, bodies among them."""

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

from tests.ir.dependence.cases import SIZES, refactored, shape_of
from tests.ir.dependence.tracing import f32


def random_program(draw):
    """A function of some arrays, and their types; it draws its steps when it is traced."""
    types = [f32(*shape_of(draw)) for _ in range(draw(st.integers(1, 3)))]
    types.append(f32(*types[0].shape))

    def program(*inputs):
        values = list(inputs)
        for _ in range(draw(st.integers(1, 5))):
            values.append(_step(draw, values))
        return values[-1], values[draw(st.integers(0, len(values) - 1))]

    return program, types


def _step(draw, values):
    value = draw(st.sampled_from(values))
    return draw(st.sampled_from(STEPS))(draw, value, values)


def _alike(draw, value, values):
    return draw(st.sampled_from([other for other in values if other.shape == value.shape]))


def _combine(draw, value, values):
    return draw(st.sampled_from([jnp.add, jnp.multiply, jnp.maximum]))(value, _alike(draw, value, values))


def _reshape(draw, value, values):
    return lax.reshape(value, refactored(draw, value.shape))


def _transpose(draw, value, values):
    return jnp.transpose(value, draw(st.permutations(range(value.ndim))))


def _reduce(draw, value, values):
    if not value.ndim:
        return value
    axis = draw(st.integers(0, value.ndim - 1))
    return jnp.sum(value, axis, keepdims=draw(st.booleans()))


def _broadcast(draw, value, values):
    return jnp.broadcast_to(value, (draw(st.sampled_from(SIZES)), *value.shape)) if value.ndim < 4 else value


def _product(draw, value, values):
    if not value.ndim:
        return value
    others = [other for other in values if other.ndim and other.ndim + value.ndim < 5]
    fitting = [other for other in others if other.shape[0] == value.shape[-1]]
    return jnp.tensordot(value, draw(st.sampled_from(fitting)), 1) if fitting else value


def _layer_norm(draw, value, values):
    return value - jnp.sum(value, -1, keepdims=True) if value.ndim else value


def _cumulate(draw, value, values):
    return jnp.cumsum(value, draw(st.integers(0, value.ndim - 1))) if value.ndim else value


def _inner(draw, value, values):
    """A body of its own, with the values it needs given or closed over."""
    wrap = draw(st.sampled_from([jax.jit, jax.checkpoint, lambda fn: fn]))
    return wrap(lambda one: jax.nn.relu(_step(draw, [one, *values])))(value)


def _branch(draw, value, values):
    other = _alike(draw, value, values)
    ways = [lambda a, b: a + b, lambda a, b: a, lambda a, b: a[::-1] if a.ndim else b, lambda a, b: b * 2]
    first, second = draw(st.sampled_from(ways)), draw(st.sampled_from(ways))
    return lax.cond(jnp.sum(draw(st.sampled_from(values))) > 0, first, second, value, other)


def _loop(draw, value, values):
    other = _alike(draw, value, values)
    turn = draw(st.sampled_from(TURNS))
    reads_all = draw(st.booleans())

    def condition(carry):
        count, array = carry
        return (count < 3) & ((jnp.sum(array) < 100) if reads_all else True)

    return lax.while_loop(condition, lambda carry: (carry[0] + 1, turn(carry[1], other)), (0, value))[1]


def _scan(draw, value, values):
    if not value.ndim:
        return value
    carried = draw(st.sampled_from(values))
    turn = draw(st.sampled_from(TURNS))
    joined = draw(st.sampled_from([lambda carry, x: x, lambda carry, x: x + jnp.sum(carry), lambda carry, x: x * 2]))
    is_reverse = draw(st.booleans())

    def body(carry, x):
        return turn(carry, carry * jnp.sum(x)), joined(carry, x)

    carry, stacked = lax.scan(body, carried, value, reverse=is_reverse)
    return draw(st.sampled_from([carry, stacked]))


TURNS = [
    lambda a, b: a + b,
    lambda a, b: a * 2,
    lambda a, b: b - jnp.sum(a, -1, keepdims=True) if a.ndim else b,
    lambda a, b: jnp.cumsum(a, 0) if a.ndim else a,
    lambda a, b: a.T + b if a.ndim == 2 and a.shape[0] == a.shape[1] else b,
]
STEPS = [
    *(_combine, _combine, _reshape, _transpose, _reduce, _broadcast, _product),
    *(_layer_norm, _cumulate, _inner, _branch, _loop, _scan),
]
