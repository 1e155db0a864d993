"""Operations with bodies: paths through them must agree."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxquard.ir.dependence import dependences
from tests.ir.dependence.tracing import call_of, equation_of, f32, i32, links, links_of_call, table

CALLS = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "composite": lambda fn: lax.composite(fn, "test.composite"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_links_of_its_body(name):
    call = CALLS[name](lambda x, y: (x @ y, x + 1))
    assert links(call, f32(4, 6), f32(6, 3)) == [["0<-0/4", "1<-1/3"], ["0<-0/4 1<-1/6", "-"]]


def test_custom_derivatives_have_the_links_of_the_function():
    custom_vjp = jax.custom_vjp(lambda x: x * 2)
    custom_vjp.defvjp(lambda x: (x * 2, None), lambda _, cotangent: (cotangent,))
    assert links(custom_vjp, f32(4)) == [["0<-0/4"]]
    custom_jvp = jax.custom_jvp(lambda x: x.sum(0))
    custom_jvp.defjvps(lambda tangent, _, x: tangent.sum(0))
    assert links(custom_jvp, f32(4, 6)) == [["0<-1/6"]]


def test_two_paths_that_end_at_other_dims_leave_no_link():
    assert links_of_call(lambda x: x + x.T, f32(4, 4)) == [[""]]


def test_one_path_without_a_link_leaves_none():
    assert links_of_call(lambda x: x - x.sum(0), f32(4, 6)) == [["1<-1/6"]]


def test_paths_with_other_chunks_keep_to_the_common_divisor():
    def fn(x):
        blocks = x.reshape(4, 6).cumsum(1).reshape(24)
        others = x.reshape(6, 4).cumsum(1).reshape(24)
        return blocks + others

    assert links_of_call(fn, f32(24)) == [["0<-0/2"]]


def test_an_input_that_is_not_read_does_not_bind_the_others():
    def fn(x):
        kept, _ = lax.optimization_barrier((x, x.sum()))
        return kept

    assert links_of_call(fn, f32(4)) == [["0<-0/4"]]


def test_what_a_body_closed_over_asks_for_nothing():
    table_of_constants = jnp.arange(24.0).reshape(4, 6)
    assert links_of_call(lambda x: x @ table_of_constants, f32(3, 4)) == [["0<-0/3"]]


def test_a_link_of_cond_holds_in_every_branch_that_reads_the_input():
    def fn(i, x, y):
        return lax.switch(i, [lambda x, y: x + y, lambda x, y: x.cumsum(0), lambda x, y: x * 2], x, y)

    equation = call_of(fn, i32(), f32(4, 6), f32(4, 6)).params["jaxpr"].jaxpr.eqns[-1]
    assert equation.primitive.name == "cond"
    assert table(equation) == [["", "1<-1/6", "0<-0/4 1<-1/6"]]


def loop(condition, body):
    return lambda count, x, *constants: lax.while_loop(
        condition, lambda carry: (carry[0] + 1, body(carry[1], *constants)), (count, x)
    )


def test_a_carry_stays_linked_where_each_turn_keeps_its_dim():
    counted = loop(lambda carry: carry[0] < 3, lambda x, w: x.cumsum(0) @ w)
    equation = equation_of(counted, i32(), f32(2, 4, 6), f32(6, 6))
    assert equation.primitive.name == "while"
    assert table(equation) == [["-", "", "-"], ["", "", "1<-1/4"]]


def test_a_condition_that_reads_an_array_takes_its_links():
    bounded = loop(lambda carry: carry[1].sum() < 3, lambda x, y: x + y)
    assert table(equation_of(bounded, i32(), f32(4), f32(4))) == [["", "", ""], ["", "-", ""]]


def test_constants_of_a_condition_are_whole():
    def fn(x, limit):
        return lax.while_loop(lambda x: jnp.all(limit > 0), lambda x: x * 2, x)

    assert table(equation_of(fn, f32(4), f32(4))) == [["", "0<-0/4"]]


def test_a_scan_links_all_dims_but_the_scanned():
    def layer(hidden, weights):
        return jnp.tanh(hidden @ weights), hidden.sum(1)

    equation = equation_of(lambda h, w: lax.scan(layer, h, w), f32(8, 6), f32(5, 6, 6))
    assert equation.primitive.name == "scan"
    assert table(equation) == [["0<-0/8", ""], ["1<-0/8", ""]]


def test_a_scanned_dim_is_linked_where_no_carry_is_behind_the_result():
    def body(carry, xs):
        x, y = xs
        return carry + y.sum(), (x * 2, y + carry)

    equation = equation_of(lambda c, x, y: lax.scan(body, c, (x, y)), f32(), f32(4, 6), f32(4, 3))
    assert table(equation) == [
        ["", "-", ""],
        ["-", "0<-0/4 1<-1/6", "-"],
        ["", "-", ""],
    ]


def test_carries_that_are_exchanged_reach_each_other():
    def body(carry, constant):
        one, other = carry
        return (other, one + constant), None

    def fn(one, other, constant):
        return lax.scan(lambda carry, _: body(carry, constant), (one, other), None, length=3)[0]

    equation = equation_of(fn, f32(4), f32(4), f32(4))
    assert table(equation) == [["0<-0/4"] * 3] * 2


def test_a_scan_without_carries():
    equation = equation_of(lambda x, y: lax.scan(lambda _, x: (None, x @ y), None, x), f32(4, 2, 6), f32(6, 3))
    assert table(equation) == [["2<-1/3", "0<-0/4 1<-1/2"]]


def test_a_primitive_without_a_rule_is_not_partitionable_and_named():
    def call_host(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((4,), jnp.float32), x)

    found = dependences(equation_of(call_host, f32(4)))
    assert not found.is_known
    assert found.links == (((),),)
    assert found.reads == ((True,),)
    assert found.unknown_primitives == ("pure_callback",)
    around = dependences(call_of(lambda x, y: (call_host(x), y * 2), f32(4), f32(4)))
    assert around.is_known
    assert around.unknown_primitives == ("pure_callback",)
    assert [[bool(links) for links in row] for row in around.links] == [[False, False], [False, True]]


def test_what_only_prints_is_not_named():
    def fn(x):
        jax.debug.print("{}", x)
        jax.debug.callback(lambda _: None, x)
        return x * 2

    found = dependences(call_of(fn, f32(4)))
    assert found.links[0][0]
    assert found.unknown_primitives == ()


def test_a_body_with_mutable_memory_is_opaque():
    def fn(x, y):
        ref = jax.new_ref(x)
        ref[...] = y.cumsum(0)
        return ref[...], y

    found = dependences(call_of(fn, f32(4), f32(4)))
    assert found.links == (((), ()), ((), ()))
    assert found.reads == ((True, True), (True, True))
    assert found.unknown_primitives


def test_a_memo_holds_each_body_once():
    inner = jax.jit(lambda x: x * 2)
    first, second = jax.make_jaxpr(lambda x: inner(inner(x)))(f32(4)).eqns
    memo = {}
    assert dependences(first, memo) == dependences(second, memo)
    assert len(memo) == 1
