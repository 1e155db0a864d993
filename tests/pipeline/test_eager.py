"""The operations that are evaluated with numpy give the bits that JAX gives."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.pipeline import eager

KEY = jax.random.key(0)


def all_operations(x, y, flags):
    """Every operation that has a rule, on floats, some on integers and flags, and some that have none."""
    count = x.astype(jnp.int32)
    return (
        *(fn(x, y) for fn in (lax.add, lax.sub, lax.mul, lax.div, lax.max, lax.min)),
        *(fn(x) for fn in (lax.abs, lax.neg, lax.square, lax.tanh)),
        *(fn(x, y) for fn in (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)),
        lax.sqrt(lax.abs(x)),
        lax.integer_pow(x, 2),
        lax.integer_pow(x, 3),
        lax.div(count, jnp.int32(3)),
        count.astype(jnp.float32) * 2,
        flags.astype(jnp.float32),
        lax.select_n(flags, x, y),
        lax.broadcast_in_dim(x, (2, 3, 4), (1, 2)),
        lax.broadcast_in_dim(x, (2, 4, 3), (2, 1)),
        lax.concatenate([x, y], 1),
        lax.reshape(x, (2, 6)),
        lax.slice(x, (0, 1), (3, 4), (2, 1)),
        lax.squeeze(lax.slice(x, (1, 0), (2, 4)), (0,)),
        lax.transpose(x, (1, 0)),
        jnp.where(flags, x.astype(jnp.bfloat16) + 1, 0),
        jax.random.key_data(jax.random.split(KEY)[1]),
        jax.grad(lambda x: jnp.sum(x * x + x))(x),
        7.0,
    )


def test_bits_are_those_of_jax():
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(3, 4)) * 3, jnp.float32) for _ in range(2))
    args = (x, y.at[0].set(x[0]).at[1, 1].set(0), x > y)
    closed = jax.make_jaxpr(all_operations)(*args)
    assert {equation.primitive.name for equation in closed.eqns} >= eager.RULES.keys() - {"add_any"}
    found = eager.evaluate(closed, args)
    for one, other in zip(found, jax.tree.leaves(all_operations(*args)), strict=True):
        other = jnp.asarray(other)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
