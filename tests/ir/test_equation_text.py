"""Equations as lines: names, literals, and which parameters are shown."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxquard.ir.equation_text import Names, write_equation, write_type
from jaxquard.ir.jaxpr_tools import new_var


def lines(fn, *args):
    jaxpr, names = jax.make_jaxpr(fn)(*args).jaxpr, Names()
    for var in jaxpr.invars:
        assert names[var]
    return [write_equation(equation, names) for equation in jaxpr.eqns]


def test_names_go_on_after_z_as_in_jax():
    names = Names()
    variables = [new_var(jax.typeof(jnp.zeros(()))) for _ in range(26 * 26 + 1)]
    given = [names[var] for var in variables]
    assert given[:2] == ["a", "b"]
    assert given[25:28] == ["z", "ba", "bb"]
    assert given[-1] == "baa"
    assert len(set(given)) == len(given)
    assert names[variables[1]] == "b"


def test_a_variable_may_stand_for_something_else():
    names = Names()
    first, second = (new_var(jax.typeof(jnp.zeros(()))) for _ in range(2))
    names.alias(first, "total0")
    assert (names[first], names[second]) == ("total0", "a")


def test_types_are_written_as_in_programs():
    assert write_type(jax.typeof(jnp.zeros((2, 3), jnp.bfloat16))) == "bfloat16[2,3]"
    assert write_type(jax.typeof(jax.random.key(0))) == "key<fry>[]"


def test_literals_and_operands():
    assert lines(lambda x: x * np.float32(0.1) - 2, np.float32(1)) == [
        "b:float32[] = mul a 0.1",
        "c:float32[] = sub b 2.0",
    ]


def test_params_that_the_type_implies_are_left_out():
    assert lines(lambda x: x.astype(jnp.bfloat16), np.zeros((2, 3), np.float32)) == [
        "b:bfloat16[2,3] = convert_element_type a"
    ]
    assert lines(lambda x, y: x @ y, np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)) == [
        "c:float32[2,4] = dot_general[dimension_numbers=(([1], [0]), ([], []))] a b"
    ]
    assert lines(lambda x: lax.broadcast(x, (3,)), np.zeros(2, np.float32)) == [
        "b:float32[3,2] = broadcast_in_dim[broadcast_dimensions=(1,)] a"
    ]


def test_a_sharding_is_shown_where_it_is_the_point():
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    for spec, text in ((PartitionSpec("data"), "P('data',)"), (PartitionSpec(None), "P(None,)")):
        sharding = NamedSharding(mesh, spec)
        (line,) = lines(lambda x, s=sharding: lax.with_sharding_constraint(x, s), np.zeros(4))
        assert line == f"b:float32[4] = sharding_constraint[sharding={text}] a"


def test_a_jaxpr_is_counted():
    (line,) = lines(lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.sin(y) + 1, x), np.float32(1))
    assert "jaxpr={" in line
    assert "equations}" in line
    assert len(line) < 200


def test_several_results_and_long_params():
    (line,) = lines(lambda x: lax.top_k(x, 2), np.zeros(4, np.float32))
    assert re.fullmatch(r"b:float32\[2\], c:int32\[2\] = top_k\[k=2 axis=0( is_stable=True)?\] a", line)
    permutation = tuple(reversed(range(30)))
    (line,) = lines(lambda x: lax.transpose(x, permutation), np.zeros((1,) * 30, np.float32))
    assert line.endswith("] a")
    assert "..." in line
