"""The transformer in Equinox: `eqx.partition` splits module and arrays, as `jax.jit` needs too."""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from tests.frameworks.transformer import HEADS, LENGTH, VOCAB, WIDTH, check_two_steps, cross_entropy

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Equinox, while it is imported.
    import equinox as eqx


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norms: list[eqx.nn.LayerNorm]
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0])
        self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(2)]
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=keys[1])
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=keys[2])

    def __call__(self, hidden):
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        normed = jax.vmap(self.norms[0])(hidden)
        hidden = hidden + self.attention(normed, normed, normed, mask)
        normed = jax.vmap(self.norms[1])(hidden)
        return hidden + jax.vmap(lambda x: self.down(jax.nn.gelu(self.up(x))))(normed)


class Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    positions: jax.Array
    blocks: list[Block]
    head: eqx.nn.Linear
    name: str = eqx.field(static=True)

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.embedding = eqx.nn.Embedding(VOCAB, WIDTH, key=keys[0])
        self.positions = 0.1 * jax.random.normal(keys[1], (LENGTH, WIDTH))
        self.blocks = [Block(keys[2]), Block(keys[3])]
        self.head = eqx.nn.Linear(WIDTH, VOCAB, key=keys[4])
        self.name = "tiny"

    def __call__(self, tokens):
        hidden = jax.vmap(jax.vmap(self.embedding))(tokens) + self.positions
        hidden = jax.vmap(self.blocks[0])(hidden)
        hidden = jq.pipeline_yield(hidden)
        hidden = jax.vmap(self.blocks[1])(hidden)
        return jax.vmap(jax.vmap(self.head))(hidden)


def test_two_steps():
    params, static = eqx.partition(Transformer(jax.random.key(0)), eqx.is_array)

    def loss_fn(params, microbatch):
        return cross_entropy(eqx.combine(params, static)(microbatch["tokens"]), microbatch["targets"])

    state = check_two_steps(loss_fn, params, jq.schedules.OneFOneB(2))
    blocks = state["params"].blocks
    assert [block.up.weight.placement[0].actors for block in blocks] == [(0,), (1,)]


def test_a_module_with_a_function_among_its_leaves():
    """JAX takes an activation for a leaf: the message says how Equinox splits modules."""

    class Activated(eqx.Module):
        weight: jax.Array
        activation: Callable

    step = jq.RemoteMesh((1,)).distributed(lambda model, x: model.activation(x @ model.weight))
    expected = (
        r"found <.*tanh.*> of type .*\. It is a leaf of the module Activated: split the module by `params, static = "
        r"eqx\.partition\(module, eqx\.is_array\)`, pass `params`, and call `eqx\.combine\(params, static\)` in"
    )
    with pytest.raises(TypeError, match=expected):
        step(Activated(weight=jnp.ones((2, 2)), activation=jnp.tanh), jnp.ones(2))
    with pytest.raises(TypeError, match=r"Pass it through static_argnums"):
        step(jnp.tanh, jnp.ones(2))
