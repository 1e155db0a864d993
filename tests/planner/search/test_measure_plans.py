"""The arrays that plans are run with."""

import jax
import jax.numpy as jnp

from jaxquard.planner.search.measure_plans import _zeros


def test_zeros_of_every_type():
    args = {
        "weights": jax.ShapeDtypeStruct((2, 3), jnp.bfloat16),
        "count": jax.ShapeDtypeStruct((), jnp.int32),
        "keys": jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4)),
    }
    found = _zeros(args)
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in found.items()} == {
        name: (leaf.shape, leaf.dtype) for name, leaf in args.items()
    }
    assert jax.random.normal(found["keys"][0]).shape == ()
