"""Every result has a buffer of its own, so that a later step may take it."""

import jax.numpy as jnp

import jaxquard as jq
from jaxquard.pipeline.passes.own_results import own_results
from tests.pipeline.planning import plan, trace


def results(fn, *args, donated_args):
    step = own_results(trace(fn, *args)[0], donated_args=donated_args)
    names = {var: f"input {number}" for number, var in enumerate(step.jaxpr.invars)}
    names |= {var: equation.primitive.name for equation in step.jaxpr.eqns for var in equation.outvars}
    outputs = [names[atom] for atom in step.jaxpr.outvars]
    assert len(set(step.jaxpr.outvars)) == len(outputs), "no two results are one"
    return outputs


def test_what_is_copied():
    def fn(a, b):
        c = jnp.sin(b)
        return a, b, b, c, c, 2.0

    found = results(fn, jnp.ones(2), jnp.ones(2), donated_args=(0,))
    assert found == ["input 0", "copy", "copy", "sin", "copy", "optimization_barrier"]


def test_a_donated_input_that_is_returned_twice():
    assert results(lambda a: (a, a), jnp.ones(2), donated_args=(0,)) == ["input 0", "copy"]


def test_loop_results_that_are_its_constants():
    """A value that a loop returns unchanged is no input of the program either, and a number is a value."""

    def step(weight, batch):
        return jq.accumulate_grads(lambda x: (jnp.sum(x), weight, 3.0), jq.schedules.GPipe(1), "last")(batch)

    program = plan(step, jnp.ones(2), jnp.ones((2, 3)), num_actors=1, has_state=False).program
    inputs = {item.slot for item in program.actors[0].inputs}
    outputs = [output.slot for output in program.actors[0].outputs]
    assert len(set(outputs)) == 3
    assert inputs.isdisjoint(outputs)
