"""Losses as users write them, for the tests of `jaxquard plan`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import jaxquard as jq


class Sgd(NamedTuple):
    """An optimizer in the form of optax."""

    def init(self, params):
        return ()

    def update(self, grads, state, params=None):
        return grads, state


def mean_square(params, batch):
    return jnp.mean((batch @ params["w"]) ** 2)


def make_loss(batch_size=8):
    return mean_square, Sgd(), ({"w": jnp.ones((4, 4))}, jnp.ones((batch_size, 4)))


def square_sum(params, batch):
    return jnp.sum((batch @ params["w"]) ** 2)


def make_sum():
    return square_sum, Sgd(), make_loss()[2]


def dropout(params, batch, key):
    return jnp.mean((batch @ params["w"] * jax.random.bernoulli(key, 0.5, batch.shape)) ** 2)


def make_dropout():
    return dropout, Sgd(), (*make_loss()[2], jax.random.key(0))


def make_layers(batch_size=16):
    """Four layers, with a mark behind the second."""

    def loss(params, batch):
        x = jnp.tanh(jnp.tanh(batch @ params[0]) @ params[1])
        x = jq.pipeline_yield(x)
        return jnp.mean((jnp.tanh(x @ params[2]) @ params[3]) ** 2)

    return loss, Sgd(), ([jnp.ones((16, 16)) / 32] * 4, jnp.ones((batch_size, 16)))


def makes_a_pair():
    return mean_square, Sgd()


def has_no_optimizer():
    return mean_square, 1e-3, ({}, None)


def fails():
    raise RuntimeError("the data is not there")


optimizer = Sgd()


def args(batch_size=16):
    return make_loss(batch_size)[2]
