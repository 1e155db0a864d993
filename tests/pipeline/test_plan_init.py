"""Each actor makes just the leaves that it shall hold; equal layers are compiled once, and draw what `init` draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.pipeline.plan_init import Wanted, plan_init
from tests.pipeline.interpreter import interpret
from tests.pipeline.planning import runs, tasks, trace

NUM_ACTORS = 3


def init(key, num_leaves=8):
    """Three equal layers with keys of their own, an embedding before and a head after them."""
    keys = jax.random.split(key, NUM_ACTORS + 2)

    def layer(key):
        draws = [jax.random.normal(one, (4, 5)) * 0.1 for one in jax.random.split(key, num_leaves)]
        return {"weights": draws, "moments": [jnp.zeros_like(draw) for draw in draws], "key": key}

    layers = [layer(keys[number]) for number in range(NUM_ACTORS)]
    return {"first": jax.random.uniform(keys[3], (3, 4)), "layers": layers, "last": jax.random.normal(keys[4], (5, 2))}


def plan(fn, key):
    """Plans a state of which each actor holds a layer, the first one and the last one more."""
    step, shapes = trace(fn, key)
    layers = [[number] * len(jax.tree.leaves(layer)) for number, layer in enumerate(shapes["layers"])]
    actors = jax.tree.leaves({"first": 0, "layers": layers, "last": NUM_ACTORS - 1})
    wanted = [Wanted(result=number, sizes=(), actors=((actor,),), spec=()) for number, actor in enumerate(actors)]
    return plan_init(step, wanted=wanted, num_actors=NUM_ACTORS), shapes


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
def test_equal_layers_are_drawn_by_one_call(make_key):
    key = make_key(7)
    program, shapes = plan(init, key)
    assert all(call.runs_once for call in program.calls)
    assert [tasks(program, actor) for actor in range(NUM_ACTORS)] == [
        ["keys", "init", "init.shared"],
        ["keys", "init.shared"],
        ["keys", "init", "init.shared"],
    ]
    for name in ("keys", "init.shared"):
        assert len({run.call for _, run in runs(program) if run.task == name}) == 1
    found = jax.tree.unflatten(jax.tree.structure(shapes), interpret(program, [key], ((),)))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(init)(key)), strict=True):
        if theirs.dtype == jnp.float32:
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        else:
            np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))


def test_small_state_is_made_by_one_task_an_actor():
    program, _ = plan(lambda key: init(key, num_leaves=1), jax.random.key(7))
    assert [tasks(program, actor) for actor in range(NUM_ACTORS)] == [["init"]] * NUM_ACTORS


def test_one_actor_makes_what_it_holds_by_one_task():
    key = jax.random.key(7)
    step, shapes = trace(init, key)
    last = len(jax.tree.leaves(shapes)) - 1
    program = plan_init(step, wanted=[Wanted(result=last, sizes=(), actors=((0,),), spec=())], num_actors=NUM_ACTORS)
    assert [tasks(program, actor) for actor in range(NUM_ACTORS)] == [["init"], [], []]
