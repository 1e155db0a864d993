import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxquard.models.layers.expert_parallel import (
    capacity_experts,
    choose_experts,
    dropless_experts,
    init_experts,
    over_axis,
)
from jaxquard.models.layers.top_k_gating import top_k_gating

NUM_EXPERTS, DIM, TOP_K = 4, 6, 2


def make_inputs(batch=4, length=5):
    kernels = init_experts(jax.random.key(0), num_experts=NUM_EXPERTS, model_dim=DIM, mlp_dim=8, down_scale=0.5)
    kernels["up"] = kernels["up"] * 20
    random = np.random.default_rng(0)
    hidden = random.normal(size=(batch, length, DIM)).astype(np.float32)
    return kernels, hidden, random.normal(scale=2, size=(batch, length, NUM_EXPERTS)).astype(np.float32)


def gelu(x):
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def one_by_one(kernels, hidden, logits, capacity=None):
    """Every token through its experts, one after the other; first choices take places first, row by row."""
    kernels = jax.tree.map(np.asarray, kernels)
    gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    ranked = np.argsort(-gates, axis=-1, kind="stable")[..., :TOP_K]
    result = np.zeros_like(hidden)
    for row in range(len(hidden)):
        taken = np.zeros(NUM_EXPERTS, int)
        for choice in range(TOP_K):
            for token in range(hidden.shape[1]):
                expert = ranked[row, token, choice]
                taken[expert] += 1
                if capacity is None or taken[expert] <= capacity:
                    weight = gates[row, token, expert] / gates[row, token, ranked[row, token]].sum()
                    up = gelu(hidden[row, token] @ kernels["up"][expert])
                    result[row, token] += weight * (up @ kernels["down"][expert])
    return result


def dropless(kernels, hidden, logits, axis=None, mesh=None):
    routing = choose_experts(logits, top_k=TOP_K)
    return over_axis(dropless_experts, axis=axis, mesh=mesh)(kernels, hidden, routing.weights, routing.chosen)


def with_capacity(kernels, hidden, logits, axis=None, mesh=None):
    combine, _ = top_k_gating(logits, top_k=TOP_K, capacity=2, normalises_gates=True)
    return over_axis(capacity_experts, axis=axis, mesh=mesh)(kernels, hidden, combine)


VARIANTS = pytest.mark.parametrize(("variant", "capacity"), [(dropless, None), (with_capacity, 2)])


@VARIANTS
def test_against_tokens_one_by_one(variant, capacity):
    inputs = make_inputs()
    np.testing.assert_allclose(jax.jit(variant)(*inputs), one_by_one(*inputs, capacity), rtol=1e-5, atol=1e-6)


@VARIANTS
@pytest.mark.parametrize("num_devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_spread_over_an_axis(variant, capacity, num_devices):
    """Results and gradients are those of one device, also where one expert gets all tokens."""
    del capacity
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("x",), axis_types=(AxisType.Auto,))
    kernels, hidden, logits = make_inputs()
    logits[0, :, 3] = 9.0

    def loss(kernels, hidden, logits, **options):
        result = variant(kernels, hidden, logits, **options)
        return jnp.sum(jnp.sin(result)), result

    find = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True), static_argnames=("axis", "mesh"))
    found = find(kernels, hidden, logits, axis="x", mesh=mesh)
    expected = find(kernels, hidden, logits)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


def test_statistics_of_the_router():
    even = choose_experts(jnp.zeros((2, 6, NUM_EXPERTS)).at[:, :3, :2].set(9.0).at[:, 3:, 2:].set(9.0), top_k=2)
    np.testing.assert_allclose(even.load, np.full(NUM_EXPERTS, 0.25))
    np.testing.assert_allclose(even.balance_loss, 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.sum(even.weights, axis=-1), 1.0, rtol=1e-6)
    skewed = choose_experts(jnp.zeros((2, 6, NUM_EXPERTS)).at[..., :2].set(9.0), top_k=2)
    np.testing.assert_allclose(skewed.load, [0.5, 0.5, 0, 0])
    assert skewed.balance_loss > 1.9
    np.testing.assert_allclose(skewed.z_loss, np.log(2 * np.exp(9.0) + 2) ** 2, rtol=1e-5)
