import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from jaxquard.models import gpt

SMALL = gpt.GptConfig(vocab_size=31, num_layers=3, num_heads=2, model_dim=16, sequence_length=8)


def count(shapes):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("config", [SMALL, gpt.SIZES["gpt2-small"]], ids=["small", "gpt2-small"])
def test_num_parameters_counts_what_init_makes(config, tied):
    config = dataclasses.replace(config, tied_embeddings=tied)
    shapes = jax.eval_shape(functools.partial(gpt.init, config=config), jax.random.key(0))
    assert gpt.num_parameters(config) == count(shapes)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    ("name", "released"),
    [
        ("gpt2-small", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_gpt2_sizes_are_those_of_the_released_weights(name, released):
    assert gpt.num_parameters(gpt.SIZES[name]) == released


@pytest.mark.parametrize("name", [name for name in gpt.SIZES if name.startswith(("gpt3-", "gpt-"))])
def test_sizes_match_their_names(name):
    number = name.split("-")[1]
    published = float(number[:-1]) * {"m": 1e6, "b": 1e9}[number[-1]]
    assert gpt.num_parameters(gpt.SIZES[name]) == pytest.approx(published, rel=0.02)


def product_flops(jaxpr):
    """Adds up the matrix products of a jaxpr and of all jaxprs inside it."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            total += 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(shape[dim] for dim in contracted)
        for inner in jaxprs_in_params(eqn.params):
            total += product_flops(inner)
    return total


@pytest.mark.parametrize("tied", [True, False])
def test_flops_per_token_counts_the_products_of_the_gradient(tied):
    config = dataclasses.replace(SMALL, tied_embeddings=tied)
    params = jax.eval_shape(functools.partial(gpt.init, config=config), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((5, config.sequence_length), jnp.int32)
    grad = jax.grad(functools.partial(gpt.loss, config=config))
    jaxpr = jax.make_jaxpr(grad)(params, {"tokens": tokens, "targets": tokens})
    assert product_flops(jaxpr.jaxpr) == gpt.flops_per_token(config) * tokens.size
