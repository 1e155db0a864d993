"""Losses as users write them, for the tests of `jaxquard plan`."""

from typing import NamedTuple

import jax.numpy as jnp


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


def makes_a_pair():
    return mean_square, Sgd()


def has_no_optimizer():
    return mean_square, 1e-3, ({}, None)


def fails():
    raise RuntimeError("the data is not there")


optimizer = Sgd()


def args(batch_size=16):
    return make_loss(batch_size)[2]
