"""Losses recomputed layer by layer: the same numbers, products computed again, and what stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.ir.jaxpr_tools import sub_jaxprs
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.step.recompute_layers import recompute_layers
from tests.pipeline.planning import count_primitive
from tests.planner.step.generate import Recipe, make_batch, make_loss, make_params

LAYERS = ("attention", "mlp", "attention", "mlp")


def traced_gradient(loss, recipe):
    return jax.make_jaxpr(jax.grad(loss))(make_params(recipe), make_batch(4))


def checkpoints(jaxpr):
    """The equations of the forward that are checkpoints."""
    found = [equation for equation in jaxpr.eqns if equation.primitive.name in ("checkpoint", "remat2")]
    return found + [one for equation in jaxpr.eqns for inner in sub_jaxprs(equation) for one in checkpoints(inner)]


@pytest.mark.parametrize(
    ("layers", "recompute"),
    [
        (("attention", "mlp"), Recompute.FULL),
        (("normed", ("checkpointed", 2)), Recompute.SELECTIVE),
        pytest.param(LAYERS, Recompute.SELECTIVE, marks=pytest.mark.slow),
        pytest.param((("attention", 2), "gated"), Recompute.FULL, marks=pytest.mark.slow),
    ],
)
def test_a_recomputed_loss_has_the_same_gradients(layers, recompute):
    recipe = Recipe(layers=layers, is_tied=True)
    params, batch, loss = make_params(recipe), make_batch(4), make_loss(recipe)
    expected = jax.jit(jax.value_and_grad(loss))(params, batch)
    found = jax.jit(jax.value_and_grad(recompute_layers(loss, recompute)))(params, batch)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_attention_and_mlp_are_one_layer_and_the_end_is_kept():
    recipe = Recipe(layers=LAYERS)
    loss = recompute_layers(make_loss(recipe), Recompute.FULL)
    forward = jax.make_jaxpr(loss)(make_params(recipe), make_batch(4))
    assert [count_primitive(one.params["jaxpr"], "dot_general") for one in checkpoints(forward.jaxpr)] == [6, 6]
    assert count_primitive(forward.jaxpr, "dot_general") == 13


def test_products_with_weights_are_kept_where_only_the_rest_is_recomputed():
    recipe = Recipe(layers=LAYERS)
    counts = [
        count_primitive(traced_gradient(recompute_layers(make_loss(recipe), recompute), recipe), "dot_general")
        for recompute in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    ]
    # The two products of attention with two operands of activations, in each of two layers, and then all but the last.
    assert counts[0] < counts[1] < counts[2]


def test_a_scan_is_recomputed_in_its_body_and_a_checkpoint_stays():
    recipe = Recipe(layers=(("mlp", 3), ("selective", 2), "mlp"))
    loss = recompute_layers(make_loss(recipe), Recompute.FULL)
    forward = jax.make_jaxpr(loss)(make_params(recipe), make_batch(4)).jaxpr
    scans = [equation for equation in forward.eqns if equation.primitive.name == "scan"]
    policies = [one.params["policy"] for scan in scans for one in checkpoints(scan.params["jaxpr"].jaxpr)]
    assert [policy is None for policy in policies] == [True, False]


def test_a_loss_that_is_kept_is_the_same_function():
    loss = make_loss(Recipe(layers=("mlp", "mlp")))
    assert recompute_layers(loss, Recompute.NONE) is loss


def test_derivatives_of_the_users_own_are_kept():
    @jax.custom_vjp
    def halved(value):
        return value

    halved.defvjp(lambda value: (value, None), lambda _, gradient: (0.5 * gradient,))

    def loss(params, batch):
        hidden = batch
        for weight in params:
            hidden = hidden + jax.jit(halved)(jnp.tanh(hidden @ weight))
        return jnp.mean(hidden**2)

    params, batch = [0.3 * jnp.ones((4, 4))] * 3, jnp.ones((2, 4))
    found = jax.grad(recompute_layers(loss, Recompute.FULL))(params, batch)
    for one, other in zip(found, jax.grad(loss)(params, batch), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
