"""Ranges of inputs, by what is done with them."""

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxquard.pricing.values.make_values import ValueRange
from jaxquard.pricing.values.read_ranges import read_ranges
from tests.pricing.programs import array

TABLE, TOKENS = array(512, 16), array(8, 4, dtype=jnp.int32)


def read(fn, *args):
    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), args)
    closed = jax.make_jaxpr(fn)(*types)
    return jax.tree.unflatten(jax.tree.structure(args), read_ranges(closed.jaxpr))


def scanned(table, tokens):
    return jax.lax.scan(lambda carry, row: (carry + table[row].sum(), None), 0.0, tokens)


INDEXED = {
    "gather": lambda table, tokens: table[tokens],
    "jit": jax.jit(lambda table, tokens: table[tokens.reshape(-1)]),
    "checkpoint": jax.checkpoint(lambda table, tokens: table[tokens]),
    "scan": scanned,
    "one_hot": lambda table, tokens: jax.nn.one_hot(tokens, 512) @ table,
    "take_along_axis": lambda table, tokens: jnp.take_along_axis(table[:4, :].T[:, :4], tokens.T[:4, :4], 0),
    "scatter": lambda table, tokens: table.at[tokens].add(1.0),
}


@pytest.mark.parametrize("name", list(INDEXED))
def test_indices_have_the_size_of_their_table(name):
    _, tokens = read(INDEXED[name], TABLE, TOKENS)
    assert tokens == ValueRange(limit=16 if name == "take_along_axis" else 512)


def test_of_two_tables_the_smaller_one_counts():
    _, _, tokens = read(lambda one, other, tokens: one[tokens].sum() + other[tokens].sum(), TABLE, array(64, 2), TOKENS)
    assert tokens.limit == 64


@pytest.mark.parametrize("make", [optax.adam, optax.adamw, optax.rmsprop, optax.adagrad])
def test_of_an_optimizer_the_squares_are_positive_and_nothing_else(make):
    params = {"w": jnp.zeros((4, 4)), "b": jnp.zeros(4)}
    optimizer = make(1e-3)

    def update(grads, state, params):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    found = read(jax.jit(update), params, optimizer.init(params), params)
    squares = {"adam": "nu", "adamw": "nu", "rmsprop": "nu", "adagrad": "sum_of_squares"}[make.__name__]
    for path, leaf in jax.tree_util.tree_leaves_with_path(found, is_leaf=lambda one: isinstance(one, ValueRange)):
        assert leaf.is_positive == (squares in jax.tree_util.keystr(path)), path


def test_the_input_of_a_norm_has_either_sign():
    def norm(x, scale):
        return scale * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    assert read(norm, array(8, 4), array(4)) == (ValueRange(), ValueRange())
