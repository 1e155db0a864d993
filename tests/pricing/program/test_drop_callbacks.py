"""A program that is priced prints nothing."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback

from jaxquard.pricing import Price
from jaxquard.pricing.program.drop_callbacks import drop_callbacks
from tests.pricing.programs import array, make, quick_pricer

heard = []


def report(value):
    heard.append(value)


def printing(value):
    jax.debug.callback(report, value.sum())
    return value


WAYS = {
    "at the top": lambda x: printing(x) * 2,
    "in order": lambda x: (io_callback(report, None, x[0], ordered=True), x * 2)[1],
    "printed": lambda x: (jax.debug.print("{}", x), x * 2)[1],
    "inspected": lambda x: (jax.debug.inspect_array_sharding(x, callback=report), x * 2)[1],
    "in a scan": lambda x: lax.scan(lambda carry, one: (printing(carry + one), printing(one)), 0.0, x),
    "in a while": lambda x: lax.while_loop(lambda s: printing(s).sum() < 9, lambda s: printing(s) + 1, x),
    "in a cond": lambda x: lax.cond(x[0] > 0, lambda: printing(x), lambda: printing(-x)),
    "in a jit": lambda x: jax.jit(printing)(x),
    "in a checkpoint": lambda x: jax.checkpoint(lambda x: printing(jnp.sin(x)))(x),
    "in a scan of conds": lambda x: lax.map(lambda one: lax.cond(one > 0, printing, lambda one: -one, one), x),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("fn", WAYS.values(), ids=WAYS)
def test_nothing_is_printed_and_the_numbers_stay(fn, capfd):
    x = jnp.arange(3.0) - 1
    wanted = jax.tree.leaves(jax.jit(fn)(x))
    jax.effects_barrier()
    heard.clear()
    capfd.readouterr()
    dropped = drop_callbacks(jax.make_jaxpr(fn)(x))
    assert not dropped.effects
    found = jax.jit(jax.extend.core.jaxpr_as_fun(dropped))(x)
    jax.effects_barrier()
    assert [value.tolist() for value in found] == [value.tolist() for value in wanted]
    assert heard == []
    assert capfd.readouterr().out == ""


def test_one_that_returns_something_stays():
    closed = jax.make_jaxpr(lambda x: io_callback(lambda x: x + 1, array(3), x))(array(3))
    (result,) = jax.extend.core.jaxpr_as_fun(drop_callbacks(closed))(jnp.zeros(3))
    assert result.tolist() == [1.0] * 3


def test_what_changes_a_reference_stays():
    def fn(x):
        total = jax.new_ref(jnp.zeros(()))
        lax.fori_loop(0, 3, lambda at, _: total.__setitem__(..., total[...] + printing(x[at])), None)
        return total[...]

    closed = jax.make_jaxpr(fn)(array(3))
    assert jax.extend.core.jaxpr_as_fun(drop_callbacks(closed))(jnp.arange(3.0))[0] == 3.0


def test_without_callbacks_it_is_the_same_jaxpr():
    closed = jax.make_jaxpr(jnp.sin)(1.0)
    assert drop_callbacks(closed) is closed


def test_a_priced_program_is_silent():
    heard.clear()
    with quick_pricer() as pricer:
        assert isinstance(pricer.price(make(WAYS["at the top"], array(8))), Price)
    jax.effects_barrier()
    assert heard == []
