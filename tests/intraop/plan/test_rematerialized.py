"""A real search over candidates of which XLA:CPU gathers values whole: they are counted, named, and not on stderr."""

import logging
import re

import jax
import jax.numpy as jnp
import pytest

from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.pricing import MeasuredPricer, Price
from jaxquard.pricing.program.lower_program import lower_program
from tests.intraop.steps import mesh_of

WARNING = "Involuntary full rematerialization"


class RememberingPricer(MeasuredPricer):
    """Keeps the programs of a search and their prices."""

    def price_all(self, programs, **options):
        prices = super().price_all(programs, **options)
        self.priced.extend(pair for pair in zip(programs, prices, strict=True) if isinstance(pair[1], Price))
        return prices


def step(weights, x):
    """Two products, between them a transpose: whatever shards the rows of one shards the columns of the other."""

    def loss(weights):
        hidden = jnp.tanh(x @ weights["first"]).T
        return jnp.mean((hidden @ weights["second"]) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value


@pytest.mark.slow
def test_bad_candidates_are_counted_and_named(capfd, caplog):
    """Compiled again, without anything that catches them, programs have as many warnings as their prices say."""
    mesh = mesh_of(x=2, y=4)
    args = {name: jnp.ones((64, 64)) for name in ("first", "second")}, jnp.ones((64, 64))
    with (
        caplog.at_level(logging.INFO, logger="jaxquard"),
        RememberingPricer(mesh, num_runs=1, max_runs=1, cache=None, num_compilers=0) as pricer,
    ):
        pricer.priced = []
        plan = search_sharding(
            step, args, mesh=mesh, pricer=pricer, every_combination=True, num_finalists=0, loop_budget_s=0
        )
    assert WARNING not in capfd.readouterr().err, "no flood of warnings"
    counts = {program.name: price.num_rematerialized for program, price in pricer.priced}
    bad = {name: count for name, count in counts.items() if count}
    good = [name for name, count in counts.items() if not count]
    assert bad
    assert good
    again = {program.name: program for program, _ in pricer.priced}
    for name in (*bad, *good[:5]):
        lower_program(again[name], mesh=mesh).compile()
        assert capfd.readouterr().err.count(WARNING) == counts[name], name
    for name, count in bad.items():
        assert f"{name}: the partitioner gathers {count} values whole" in caplog.text
    (note,) = [note for note in plan.notes if WARNING.lower() in note]
    found = re.match(r"of (\d+) of \d+ priced programs .* of most in (.*) \((\d+)\)\. Their", note)
    assert found is not None
    assert 1 <= int(found[1]) <= len(bad)
    assert bad[found[2]] == int(found[3])
