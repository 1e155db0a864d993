"""The transformer in Equinox: `eqx.partition` splits module and arrays, as `jax.jit` needs too."""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
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


class Activated(eqx.Module):
    """JAX takes its activation for a leaf: messages say how Equinox splits modules."""

    weight: jax.Array
    activation: Callable

    @classmethod
    def make(cls, weight):
        return cls(weight=weight, activation=jnp.tanh)


def test_a_module_with_a_function_among_its_leaves():
    step = jq.RemoteMesh((1,)).distributed(lambda model, x: model.activation(x @ model.weight))
    expected = (
        r"found <.*tanh.*> of type .*\. It is a leaf of the module Activated: split the module by `params, static = "
        r"eqx\.partition\(module, eqx\.is_array\)`, pass `params`, and call `eqx\.combine\(params, static\)` in"
    )
    with pytest.raises(TypeError, match=expected):
        step(Activated(weight=jnp.ones((2, 2)), activation=jnp.tanh), jnp.ones(2))
    with pytest.raises(TypeError, match=r"Pass it through static_argnums"):
        step(jnp.tanh, jnp.ones(2))


def returns_a_module(mesh):
    mesh.distributed(Activated.make)(jnp.ones((2, 2)))


def makes_a_module(mesh):
    mesh.init(Activated.make, jnp.ones((2, 2)))


def searches_for_a_module(mesh):
    devices = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    jq.search_sharding(
        lambda model, x: (model, x @ model.weight), (Activated.make(jnp.ones((2, 2))), jnp.ones(2)), mesh=devices
    )


def plans_a_module(mesh):
    loss = lambda model, x: jnp.mean(x @ model.weight)  # noqa: E731
    jq.parallelize(loss, optax.sgd(0.1), (Activated.make(jnp.ones((2, 2))), jnp.ones((2, 2))), devices=1)


def plans_a_step_of_a_module(mesh):
    def step(model, batch):
        return jq.accumulate_grads(lambda x: jnp.mean(x @ model.weight), jq.schedules.AUTO)(batch)

    jq.plan(step, (Activated.make(jnp.ones((2, 2))), jnp.ones((2, 2, 2))), cluster="h100-8")


def carries_a_module(mesh):
    loop = jq.accumulate_grads(lambda carry, x: (carry, x), jq.schedules.GPipe(1), carry=Activated.make(jnp.ones(2)))
    loop(jnp.ones(2))


def accumulates_a_module(mesh):
    jq.accumulate_grads(Activated.make, jq.schedules.GPipe(1))(jnp.ones(2))


@pytest.mark.parametrize(
    ("use", "found", "cure"),
    [
        (returns_a_module, "a distributed step returns <.*> of type .* as result.activation, not", ", return `params`"),
        (makes_a_module, "the function of RemoteMesh.init returns <.*> .* as result.activation", ", return `params`"),
        (
            searches_for_a_module,
            r"a step takes arrays, .*; argument 0\.activation is <.*",
            ", pass `params`.* the step",
        ),
        (plans_a_module, r"params\.activation is a .*, which JAX has not", ", pass `params`.* in the loss"),
        (plans_a_step_of_a_module, r"argument 0\.activation is <.*>", ", pass `params`.* in the step"),
        (carries_a_module, r"carry\.activation is <.*>, not an array", ", carry `params`.* in the function"),
        (accumulates_a_module, r"accumulate_grads at test_equinox.py:\d+ returns <.*>", ", return `params`"),
    ],
)
def test_a_module_with_a_function_elsewhere(use, found, cure):
    expected = rf"{found}.*\. It is a leaf of the module Activated: split the module by .*{cure}"
    with pytest.raises((TypeError, ValueError), match=expected):
        use(jq.RemoteMesh((1,)))
