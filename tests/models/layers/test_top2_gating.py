import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.models.layers import top2_gating as module

# Under one `jit`: by itself each operation would be compiled.
top2_gating = jax.jit(module.top2_gating, static_argnames=("capacity",))


def numpy_gating(logits, capacity, goes=None):
    """The paper's algorithm 1 as it is written: two loops over the tokens of each group."""
    batch, length, experts = logits.shape
    combine = np.zeros((batch, length, experts, capacity))
    balance = []
    for row in range(batch):
        gates = np.exp(logits[row] - logits[row].max(-1, keepdims=True))
        gates /= gates.sum(-1, keepdims=True)
        ranked = [sorted(range(experts), key=lambda expert, gate=gate: -gate[expert])[:2] for gate in gates]
        taken = [0] * experts
        for token, (first, second) in enumerate(ranked):
            if taken[first] < capacity:
                weight = gates[token, first] / (gates[token, first] + gates[token, second])
                combine[row, token, first, taken[first]] = weight
            taken[first] += 1
        balance.append(experts * sum(taken[e] / length * gates[:, e].mean() for e in range(experts)))
        for token, (first, second) in enumerate(ranked):
            if goes is not None and not goes[row, token]:
                continue
            if taken[second] < capacity:
                weight = gates[token, second] / (gates[token, first] + gates[token, second])
                combine[row, token, second, taken[second]] = weight
            taken[second] += 1
    return combine, np.mean(balance)


def random_logits(batch=3, length=16, experts=4, scale=2.0):
    return np.random.default_rng(0).normal(size=(batch, length, experts), scale=scale).astype(np.float32)


@pytest.mark.parametrize("capacity", [1, 4, 8, 16])
def test_against_the_papers_loops(capacity):
    logits = random_logits()
    combine, balance = top2_gating(jnp.asarray(logits), capacity=capacity)
    expected, expected_balance = numpy_gating(logits.astype(np.float64), capacity)
    np.testing.assert_array_equal(np.asarray(combine) > 0, expected > 0)
    np.testing.assert_allclose(combine, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(balance, expected_balance, rtol=1e-5)


def test_weights_of_a_token_that_found_both_places_sum_to_1():
    combine, _ = top2_gating(jnp.asarray(random_logits()), capacity=32)
    np.testing.assert_allclose(np.asarray(combine).sum((-2, -1)), 1, rtol=1e-6)
    assert ((np.asarray(combine) > 0).sum((-2, -1)) == 2).all()


def test_no_place_is_taken_twice_and_late_tokens_are_dropped():
    logits = jnp.zeros((1, 6, 4)).at[..., 0].set(5).at[..., 1].set(3)
    combine, _ = top2_gating(logits, capacity=2)
    taken = np.asarray(combine)[0] > 0
    assert taken.sum(0).max() == 1
    assert [tuple(np.argwhere(token)[:, 0]) for token in taken] == [(0, 1), (0, 1), (), (), (), ()]


def test_first_choices_go_before_second_choices():
    # Tokens 0 and 1 want expert 1 second; tokens 2 and 3 want it first, and get it.
    first_then_second = [[5, 3, 0], [5, 3, 0], [0, 5, 3], [0, 5, 3]]
    combine, _ = top2_gating(jnp.asarray([first_then_second], jnp.float32), capacity=2)
    taken = np.asarray(combine)[0] > 0
    assert [tuple(np.argwhere(token)[:, 0]) for token in taken] == [(0,), (0,), (1, 2), (1, 2)]


def test_the_second_expert_is_another_one_even_if_its_gate_is_0():
    logits = jnp.asarray([[[200.0, 0.0, 0.0]]])
    combine, _ = top2_gating(logits, capacity=1)
    np.testing.assert_array_equal(combine[0, 0, :, 0], [1, 0, 0])


def test_a_random_second_expert_takes_part_by_its_weight():
    logits = random_logits(batch=64)
    key = jax.random.key(0)
    combine, balance = top2_gating(jnp.asarray(logits), capacity=5, second_key=key)
    all_combine, all_balance = top2_gating(jnp.asarray(logits), capacity=32)
    second = np.sort(np.asarray(all_combine).sum(-1), -1)[..., -2]
    goes = 2 * second > np.asarray(jax.random.uniform(key, second.shape))
    assert 0.1 < goes.mean() < 0.9
    np.testing.assert_allclose(combine, numpy_gating(logits.astype(np.float64), 5, goes)[0], rtol=1e-5, atol=1e-7)
    assert balance == all_balance


@pytest.mark.thin(3)
@pytest.mark.parametrize("experts", [2, 4, 8])
def test_the_balance_loss_is_1_under_an_even_load_and_the_number_of_experts_under_the_worst(experts):
    even = 30 * jnp.eye(experts)[jnp.arange(16) % experts][None]
    worst = 30 * jnp.eye(experts)[jnp.zeros(16, int)][None]
    np.testing.assert_allclose(top2_gating(even, capacity=16)[1], 1, rtol=1e-5)
    np.testing.assert_allclose(top2_gating(worst, capacity=16)[1], experts, rtol=1e-5)


def test_the_balance_loss_pushes_away_from_the_crowded_expert():
    logits = jnp.zeros((1, 8, 4)).at[..., 2].set(1)
    grad = jax.grad(lambda logits: top2_gating(logits, capacity=4)[1])(logits)
    assert (np.asarray(grad)[..., 2] > 0).all()
    assert (np.asarray(grad)[..., [0, 1, 3]] < 0).all()
