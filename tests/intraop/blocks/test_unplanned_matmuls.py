"""Products in a loop or a branch are named, as no plan is made for them."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.intraop.blocks.unplanned_matmuls import frozen_matmuls, unplanned_matmuls
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.segments.analysis_text import analysis_text
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.patterns import PATTERNS
from tests.intraop.scanned_patterns import OPENED
from tests.intraop.steps import analyse, inputs, mesh_of, sgd, weights

LINES = Path(__file__).read_text().splitlines()
ARGS = (weights(w=(16, 32), v=(32, 32)), inputs(8, 16))


def over_time(params, batch):
    def cell(carry, _):
        return jnp.tanh(carry @ params["v"]), None

    carry, _ = lax.scan(cell, batch @ params["w"], None, length=3)
    return jnp.mean(carry**2)


def in_a_branch(params, batch):
    hidden = batch @ params["w"]
    return jnp.mean(lax.cond(jnp.sum(batch) > 0, lambda x: x @ params["v"], jnp.tanh, hidden) ** 2)


def in_a_while(params, batch):
    hidden, square = lax.stop_gradient((batch @ params["w"], params["v"]))
    _, hidden = lax.while_loop(
        lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, jax.jit(jnp.dot)(carry[1], square)), (0, hidden)
    )
    return jnp.mean((batch @ params["w"]) ** 2) + jnp.mean(hidden)


def notes(loss):
    found = search_sharding(sgd(loss), ARGS, mesh=mesh_of(x=8), pricer=FakePricer(), num_finalists=0)
    return [note for note in found.notes if note.startswith("matrix products not planned")]


def test_a_scan_over_time_a_branch_and_a_while_are_named_with_their_lines():
    for loss, name in ((over_time, "scan"), (in_a_branch, "cond"), (in_a_while, "while")):
        (note,) = notes(loss)
        line = next(count for count, text in enumerate(LINES, 1) if f"lax.{name}" in text)
        assert f"not planned: inside `{name}` at test_unplanned_matmuls.py:{line}" in note
        assert "The compiler shards them" in note


def lora(base, adapters, batch):
    def loss(adapters):
        hidden = batch @ base["w"].T + batch @ adapters["a"] @ adapters["b"]
        return jnp.mean(jnp.tanh(hidden) ** 2)

    return jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, adapters, jax.grad(loss)(adapters))


def test_weights_that_are_not_trained_and_come_as_data_are_named():
    base, adapters = weights(w=(64, 32)), weights(a=(32, 8), b=(8, 64))
    (note,) = frozen_matmuls(analyse(lora, (base, adapters, inputs(16, 32))).graph)
    begin = "products with argument 0['w'] or argument 2 are not planned, 73% of the forward's: the step does not"
    assert note.startswith(begin)
    bound = partial(lora, base)
    assert frozen_matmuls(analyse(bound, (adapters, inputs(16, 32))).graph) == ()
    assert len(analyse(bound, (adapters, inputs(16, 32))).blocks) > 1


def test_the_weight_is_named_where_the_other_side_is_computed():
    def step(base, adapters, batch):
        return lora(base, adapters, jnp.tanh(base["u"] @ batch.T).T)

    base, adapters = weights(w=(64, 32), u=(32, 32)), weights(a=(32, 8), b=(8, 64))
    (note,) = frozen_matmuls(analyse(step, (base, adapters, inputs(16, 32))).graph)
    assert note.startswith("products with argument 0['w'] and 1 other are not planned")


def test_a_weight_that_is_used_twice_and_a_product_with_itself_are_named_once():
    def step(base, adapters, batch):
        gram = jnp.mean((batch @ batch.T) ** 2)
        twice = jnp.mean(jnp.tanh(batch @ base["w"]) @ base["w"])
        loss = lambda adapters: jnp.mean((batch @ adapters["a"]) ** 2) * gram * twice  # noqa: E731
        return jax.tree.map(lambda leaf, grad: leaf - grad, adapters, jax.grad(loss)(adapters))

    (note,) = frozen_matmuls(analyse(step, (weights(w=(32, 32)), weights(a=(32, 8)), inputs(64, 32))).graph)
    assert note.startswith("products with argument 2 and 1 other are not planned")


def test_queries_and_keys_are_no_such_weights():
    for name in ("queries, keys, values minor", "mlp", "cross attention"):
        assert frozen_matmuls(analyse(*PATTERNS[name]()).graph) == ()


def test_the_analysis_says_so_too():
    assert "\n\nnote: matrix products not planned: inside `scan`" in analysis_text(analyse(sgd(over_time), ARGS))


def test_what_was_opened_and_branches_without_products_are_not():
    def guarded(params, batch):
        return jnp.mean(lax.cond(jnp.sum(batch) > 0, jnp.tanh, jnp.sin, batch @ params["w"]) ** 2)

    assert not notes(guarded)
    for step, args in (PATTERNS["mlp"](), *(OPENED[name]() for name in ("adam with clipping", "scan in scan"))):
        assert not unplanned_matmuls(analyse(step, args).graph.equations)


def test_many_places_are_counted():
    def many(params, batch):
        hidden = batch @ params["w"]
        # Each on a line of its own.
        hidden = lax.cond(jnp.sum(batch) > 0, lambda x: x @ params["v"], jnp.tanh, hidden)
        hidden = lax.cond(jnp.sum(batch) > 1, lambda x: x @ params["v"], jnp.tanh, hidden)
        hidden = lax.cond(jnp.sum(batch) > 2, lambda x: x @ params["v"], jnp.tanh, hidden)
        hidden = lax.cond(jnp.sum(batch) > 3, lambda x: x @ params["v"], jnp.tanh, hidden)
        hidden = lax.cond(jnp.sum(batch) > 4, lambda x: x @ params["v"], jnp.tanh, hidden)
        return jnp.mean(hidden**2)

    (note,) = notes(many)
    assert note.count("`cond` at") == 4
    assert ", 1 more. The compiler" in note
