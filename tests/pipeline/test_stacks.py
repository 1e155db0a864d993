import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxquard as jq
from jaxquard.errors import MarkError


def body(carry, layer):
    hidden, number = carry
    hidden = jnp.tanh(hidden @ layer["kernel"]) + number
    return (hidden, number + 1), {"mean": jnp.mean(hidden)}


def make_layers(num_layers):
    return {"kernel": jnp.asarray(np.random.default_rng(0).normal(size=(num_layers, 3, 3)), jnp.float32)}


START = (jnp.ones((2, 3)), jnp.int32(0))


@pytest.mark.thin(2)
@pytest.mark.parametrize(("num_layers", "num_stages"), [(4, 1), (4, 2), (5, 3), (3, 3)])
def test_gives_what_scan_gives(num_layers, num_stages):
    layers = make_layers(num_layers)

    def loss(layers, scan):
        (hidden, _), outputs = scan(body, START, layers)
        return jnp.sum(hidden) + jnp.sum(outputs["mean"] ** 2), outputs

    staged = lambda *args: jq.pipeline_scan(*args, num_stages=num_stages)  # noqa: E731
    (found, outputs), grads = jax.value_and_grad(loss, has_aux=True)(layers, staged)
    (expected, expected_outputs), expected_grads = jax.value_and_grad(loss, has_aux=True)(layers, lax.scan)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(outputs["mean"], expected_outputs["mean"], rtol=1e-5)
    # Layers in one program or in several are fused, and rounded, in other ways: a few roundings of the largest value.
    largest = np.abs(expected_grads["kernel"]).max()
    np.testing.assert_allclose(grads["kernel"], expected_grads["kernel"], rtol=1e-5, atol=8 * 2**-24 * largest)


def test_under_vmap_and_forward_mode():
    layers = make_layers(3)

    def last(hidden, layers):
        return jq.pipeline_scan(lambda h, w: (jnp.tanh(h @ w), h), hidden, layers["kernel"], num_stages=2)[0]

    start = jnp.ones((4, 2, 3))
    found = jax.vmap(last, in_axes=(0, None))(start, layers)
    assert found.shape == (4, 2, 3)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), layers)
    np.testing.assert_allclose(jax.vmap(last, in_axes=(None, 0))(start[0], stacked)[1], found[0], rtol=1e-6)
    tangent = jax.tree.map(jnp.ones_like, layers)
    _, moved = jax.jvp(lambda layers: last(start[0], layers), (layers,), (tangent,))
    plain = lambda kernel: lax.scan(lambda h, w: (jnp.tanh(h @ w), None), start[0], kernel)[0]  # noqa: E731
    _, expected = jax.jvp(plain, (layers["kernel"],), (tangent["kernel"],))
    np.testing.assert_allclose(moved, expected, rtol=1e-5)


def test_leaves_of_different_lengths():
    with pytest.raises(MarkError) as caught:
        jq.pipeline_scan(body, START, {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(4)}, num_stages=2)
    assert "pipeline_scan at test_stacks.py:" in str(caught.value)
    assert "needs leaves that agree on their first dim, the layers; found 3, 4." in str(caught.value)


@pytest.mark.parametrize("num_stages", [0, 4])
def test_too_many_stages(num_stages):
    with pytest.raises(MarkError) as caught:
        jq.pipeline_scan(body, START, make_layers(3), num_stages=num_stages)
    assert str(caught.value).startswith("pipeline_scan at test_stacks.py:")
    assert str(caught.value).endswith(f"cannot split 3 layers into {num_stages} stages. Use between 1 and 3.")
