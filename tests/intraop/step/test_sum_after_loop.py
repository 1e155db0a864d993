"""The weight gradients of a loop over time are summed behind it, and the step computes the same."""

import re

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxquard._jax_compat import scan_counts
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing.program.lower_program import lower_program
from tests.intraop.run_traced import run_traced
from tests.intraop.same_numbers import check_same, check_step
from tests.intraop.steps import analyse, inputs, mesh_of, sgd, weights


def lstm(state, token, params):
    hidden, memory = state
    gates = token @ params["in"] + hidden @ params["hidden"] + params["bias"]
    enter, forget, new, out = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jax.nn.sigmoid(out) * jnp.tanh(memory), memory


def gru(state, token, params):
    hidden, memory = state
    reset, update, _, new = jnp.split(token @ params["in"] + params["bias"], 4, axis=-1)
    inner = jnp.split(hidden @ params["hidden"], 4, axis=-1)
    reset, update = jax.nn.sigmoid(reset + inner[0]), jax.nn.sigmoid(update + inner[1])
    hidden = (1 - update) * jnp.tanh(new + reset * inner[2]) + update * hidden
    return hidden, memory


def recurrent_step(cell, *, length=5, batch=8, dim=16, reverse=False, remat=False):
    """Two layers of cells, and a head; tokens come time first."""

    def loss(params, x):
        for layer in (params["first"], params["second"]):
            start = (jnp.zeros((batch, dim)),) * 2

            def step(state, token, layer=layer):
                state = cell(state, token, layer)
                return state, state[0]

            _, x = jax.lax.scan(jax.checkpoint(step) if remat else step, start, x, reverse=reverse)
        return jnp.mean((x @ params["head"]) ** 2)

    shapes = {"in": (dim, 4 * dim), "hidden": (dim, 4 * dim), "bias": (4 * dim,)}
    params = {"first": weights(**shapes), "second": weights(**shapes), "head": inputs(dim, 8)}
    return sgd(loss), (params, inputs(length, batch, dim))


def carries(step, args):
    return [scan_counts(eqn.params)[1] for eqn in trace_step(step, args).jaxpr.eqns if eqn.primitive.name == "scan"]


@pytest.mark.parametrize("cell", [lstm, gru])
def test_loops_of_the_backward_carry_the_state_alone(cell):
    """Not the gradients of two weights and a bias."""
    (forward, *_), num_carries = carries(*recurrent_step(cell)), carries(*recurrent_step(cell))
    assert num_carries == [forward] * 4
    assert forward <= 2


def test_a_loop_over_microbatches_that_a_user_wrote_stays():
    def loss(params, x):
        return jnp.mean((x @ params["w"]) ** 2)

    def step(params, batch):
        def add(grads, x):
            return jax.tree.map(jnp.add, grads, jax.grad(loss)(params, x)), None

        grads, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batch.reshape(4, 2, 16))
        return jax.tree.map(lambda param, grad: param - grad, params, grads)

    (scan,) = (eqn for eqn in jax.make_jaxpr(step)(weights(w=(16, 8)), inputs(8, 16)).eqns if "scan" in str(eqn))
    assert carries(step, (weights(w=(16, 8)), inputs(8, 16))) == [scan_counts(scan.params)[1]] == [1]


def test_a_gradient_with_an_operand_that_is_the_same_in_all_steps_stays():
    """Of a context that every step reads by way of a weight: the weight would be saved for each step."""

    def loss(params, x):
        context = jnp.tanh(x[0] @ params["context"])

        def cell(hidden, token):
            return jnp.tanh(token + hidden * (context @ params["read"])), None

        hidden, _ = jax.lax.scan(cell, jnp.zeros((8, 16)), x)
        return jnp.mean((hidden @ params["head"]) ** 2)

    step = sgd(loss)
    args = weights(context=(16, 16), read=(16, 16), head=(16, 8)), inputs(4, 8, 16)
    saved = [var.aval.shape for eqn in trace_step(step, args).jaxpr.eqns for var in eqn.outvars]
    assert (4, 16, 16) not in saved
    check_same(run_traced(trace_step(step, args), args), jax.jit(step)(*args))


@pytest.mark.usefixtures("quick_compilation")
def test_sharded_by_the_batch_gradients_are_summed_over_devices_once_and_not_in_the_loop():
    analysis = analyse(*recurrent_step(lstm))
    rows = {block.number: ("rows",) for block in analysis.blocks}
    program = write_whole_step(StepPrograms(analysis), rows)
    text = lower_program(program, mesh=mesh_of(x=8)).compile().as_text()
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    computations = re.split(r"\n(?=%?[\w.\-]+ \(|ENTRY)", text)
    inside = [one for one in computations if one.lstrip("%").split(" ")[0] in bodies]
    assert len(inside) == 4
    assert "all-reduce" not in "".join(inside)
    assert "all-gather" not in text
    assert "all-reduce" in text


class TestSameNumbers:
    def test_on_one_device(self):
        step, args = recurrent_step(lstm, length=3, batch=2, dim=4)
        check_same(run_traced(trace_step(step, args), args), jax.jit(step)(*args))

    @pytest.mark.slow
    @pytest.mark.parametrize("cell", [lstm, gru])
    def test_sharded_by_the_batch(self, cell):
        step, args = recurrent_step(cell)
        analysis = analyse(step, args)
        check_step(step, args, analysis, [{0: ("rows",)}], mesh=mesh_of(x=8))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["columns", "contracted"])
    def test_and_otherwise(self, name):
        step, args = recurrent_step(lstm)
        check_step(step, args, analyse(step, args), [{0: (name,)}], mesh=mesh_of(x=8))

    @pytest.mark.slow
    @settings(max_examples=12, deadline=None)
    @given(
        cell=st.sampled_from([lstm, gru]),
        length=st.integers(1, 4),
        batch=st.integers(1, 3),
        dim=st.integers(1, 5),
        reverse=st.booleans(),
        remat=st.booleans(),
    )
    def test_of_any_shape(self, cell, length, batch, dim, reverse, remat):
        step, args = recurrent_step(cell, length=length, batch=batch, dim=dim, reverse=reverse, remat=remat)
        check_same(run_traced(trace_step(step, args), args), jax.jit(step)(*args))
