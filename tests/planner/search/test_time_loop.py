"""Training loops: what a step gets of the one before."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.planner.search.time_loop import time_loop


def test_a_step_gets_the_state_of_the_one_before():
    """Wherever it is among the results; what is not state stays."""
    count, weights, batch = np.int32(0), {"w": np.zeros(2, np.float32)}, []
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
    state, batch = {"w": jnp.zeros(2)}, {"w": jnp.zeros(3)}
    seen = []

    def step(batch, state):
        seen.append(state["w"].shape)
        return {"w": jnp.zeros(3)}, {"w": jnp.asarray(state["w"])}

    time_loop(step, [batch, state], state=(1,))
    assert set(seen) == {(2,)}


def test_types_of_a_state_with_keys():
    keys = jax.random.split(jax.random.key(0), 4)
    seen = []

    def step(state):
        seen.append(state)
        return (state,)

    time_loop(step, [{"keys": keys}], state=(0,))
    assert seen[0]["keys"].dtype == keys.dtype
