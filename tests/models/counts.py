"""Counts parameters and operations from shapes and jaxprs, for tests of the formulas."""

import functools
import math

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params


def param_shapes(module, config):
    return jax.eval_shape(functools.partial(module.init, config=config), jax.random.key(0))


def num_in_init(module, config):
    leaves = jax.tree.leaves(param_shapes(module, config))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}
    return sum(math.prod(leaf.shape) for leaf in leaves)


def batch_shapes(module, config, batch_size):
    make = functools.partial(module.synthetic_batch, config=config, num_microbatches=1, microbatch_size=batch_size)
    batch = jax.eval_shape(make, jax.random.key(0))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)


def flops_of_gradient(module, config, batch_size=5):
    """The operations of all matrix products of one gradient, per token."""
    grad = jax.grad(functools.partial(module.loss, config=config))
    jaxpr = jax.make_jaxpr(grad)(param_shapes(module, config), batch_shapes(module, config, batch_size))
    return product_flops(jaxpr.jaxpr) / (batch_size * config.sequence_length)


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


def product_dtypes(module, config):
    """The dtypes of the operands of each matrix product of the loss."""
    loss = functools.partial(module.loss, config=config)
    jaxpr = jax.make_jaxpr(loss)(param_shapes(module, config), batch_shapes(module, config, 2))
    products = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    return [tuple(invar.aval.dtype.name for invar in eqn.invars) for eqn in products]
