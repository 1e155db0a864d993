"""Training loops: what a step gets first, and of the one before."""

import itertools
import statistics
import time

import jax
import jax.numpy as jnp

from jaxquard.planner.search.time_loop import time_loop


def test_the_state_is_zeros_and_the_batch_is_not():
    """Random keys are keys in both."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
    weights, count = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16), jax.ShapeDtypeStruct((), jnp.int32)
    args = [{"weights": weights, "count": count, "keys": keys}, {"tokens": jax.ShapeDtypeStruct((64,), jnp.int32)}]
    seen = []

    def step(state, batch):
        seen.append((state, batch))
        return (jax.tree.map(jnp.asarray, state),)

    time_loop(step, args, state=(0,))
    for given, arg in zip(seen[0], args, strict=True):
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), given) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), arg
        )
    state, batch = seen[0]
    assert not state["weights"].any()
    assert not state["count"]
    assert len(set(batch["tokens"].tolist())) > 16
    assert jax.random.normal(state["keys"][0]).shape == ()


def test_a_step_gets_the_state_of_the_one_before():
    """Wherever it is among the results; what is not state stays."""
    count, weights, batch = (jax.ShapeDtypeStruct((), jnp.int32), {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}, [])
    seen = []

    def step(weights, batch, count):
        seen.append((float(weights["w"][0]), int(count)))
        return (
            {"loss": jnp.zeros(()), "more": jnp.zeros(())},
            jnp.asarray(count) + 1,
            {"w": jnp.asarray(weights["w"]) + 2},
        )

    times_s = time_loop(step, [weights, batch, count], state=(0, 2))
    assert seen == [(2.0 * number, number) for number in range(len(seen))]
    # Those of the first steps are left out.
    assert 5 <= len(times_s) < len(seen)


def test_of_results_that_look_alike_the_one_of_the_same_types_is_the_state():
    state, shape = {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}, {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
    seen = []

    def step(batch, state):
        seen.append(state["w"].shape)
        return {"w": jnp.zeros(3)}, {"w": jnp.asarray(state["w"])}

    time_loop(step, [shape, state], state=(1,))
    assert set(seen) == {(2,)}


def test_pauses_are_between_the_steps():
    """And no part of them; that of the first steps is no shorter."""
    seen = []

    def step(state):
        seen.append(time.perf_counter())
        return (jnp.asarray(state),)

    times_s = time_loop(step, [jax.ShapeDtypeStruct((), jnp.int32)], state=(0,), pause_s=0.05)
    assert all(later - earlier >= 0.05 for earlier, later in itertools.pairwise(seen))
    assert statistics.median(times_s) < 0.05
