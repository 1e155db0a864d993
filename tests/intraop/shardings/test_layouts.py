"""Shardings of values between blocks: branches, and blocks that want the same value in different ways (figure 5)."""

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.intraop.shardings.layouts import StepLayouts
from tests.intraop.steps import analyse, inputs, sgd, weights

ROWS, COLUMNS, CONTRACTED = ("rows",), ("columns",), ("contracted",)


def specs(loss, args, choices):
    """The shardings of the results of a sine or a tanh, by its name."""
    analysis = analyse(sgd(loss), args)
    assert len(analysis.blocks) == len(choices)
    found = {}
    for segment in analysis.segments:
        layouts = StepLayouts(analysis).lay_out(dict(enumerate(choices)), segment=segment)
        for equation in analysis.graph.equations:
            if equation.primitive.name in ("sin", "tanh") and equation.outvars[0] in layouts.of_axes["x"].dims:
                found.setdefault(equation.primitive.name, layouts.spec(equation.outvars[0]))
    return found


@pytest.mark.parametrize(
    ("choice", "wanted"), [(ROWS, P("x")), (COLUMNS, P()), (CONTRACTED, P(None, "x"))], ids=["rows", "columns", "sum"]
)
def test_an_input_branch_is_sharded_as_the_block_needs_it(choice, wanted):
    """Figure 5a: what is computed on the way from an input stands in no block, and follows the one that takes it."""

    def loss(params, batch):
        return jnp.mean((jnp.sin(batch) @ params["w"]) ** 2)

    assert specs(loss, (weights(w=(32, 64)), inputs(16, 32)), [choice])["sin"] == wanted


@pytest.mark.parametrize(
    ("choice", "wanted"), [(ROWS, P("x")), (COLUMNS, P(None, "x")), (CONTRACTED, P())], ids=["rows", "columns", "sum"]
)
def test_a_value_of_a_block_is_sharded_as_its_block_is(choice, wanted):
    """Figure 5b: whatever the next block wants; the compiler reshards for it."""

    def loss(params, batch):
        return jnp.mean((jnp.tanh(batch @ params["w"]) @ params["v"]) ** 2)

    args = (weights(w=(32, 64), v=(64, 32)), inputs(16, 32))
    for other in (ROWS, COLUMNS, CONTRACTED):
        assert specs(loss, args, [choice, other])["tanh"] == wanted


@pytest.mark.parametrize(("choice", "wanted"), [(ROWS, P("x")), (CONTRACTED, P(None, "x"))], ids=["rows", "sum"])
def test_of_two_blocks_that_want_a_value_the_first_has_it(choice, wanted):
    """Figure 5c: the second takes it transposed, so that the same choice wants the other dim; that is a reshard."""

    def loss(params, batch):
        shared = jnp.sin(batch)
        return jnp.mean((shared @ params["w"]) ** 2) + jnp.mean((shared.T @ params["v"]) ** 2)

    args = (weights(w=(32, 64), v=(16, 64)), inputs(16, 32))
    assert specs(loss, args, [choice, choice])["sin"] == wanted
