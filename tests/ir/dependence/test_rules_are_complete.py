"""Rules find what there is to find: against what perturbation cannot refute, and against JAX's primitives."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import Primitive, primitives

from jaxquard.ir.dependence import rule_table
from jaxquard.ir.dependence.rule_table import BODY_RULES, RULES
from jaxquard.ir.jaxpr_tools import is_var
from tests.ir.dependence.cases import CASES
from tests.ir.dependence.oracle import found_chunks, held_chunks
from tests.ir.dependence.tracing import equation_of, f32, flat_equations, i32

# A rule may leave out a link that holds by chance (a second key of a sort without ties, indices into
# one row) or that no local program follows (a scatter's operand); these may not.
EXACT = """
    arg_reduction barrier broadcast concatenate cumulative general_reduction product reduction reshape reverse
    select split squeeze stack take_along top_k transpose unstack
""".split()


def check_exact(name, data):
    fn, types = CASES[name](data.draw)
    for equation in flat_equations(fn, *types):
        inputs = [atom for atom in equation.invars if is_var(atom)]
        if len(set(inputs)) == len(inputs):
            assert found_chunks(equation) == held_chunks(equation)


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=4)
@given(data=st.data())
def test_a_rule_finds_all_that_holds(name, data):
    check_exact(name, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=40)
@given(data=st.data())
def test_a_rule_finds_all_that_holds_in_many_examples(name, data):
    check_exact(name, data)


@pytest.mark.parametrize(
    ("fn", "types"),
    [
        (jnp.add, (f32(4, 6), f32(4, 6))),
        (lambda x: lax.reshape(x, (2, 2, 3, 2)), (f32(4, 6),)),
        (lambda x: lax.reshape(x, (6, 4)), (f32(4, 6),)),
        (lambda x: lax.reshape(x, (8, 3)), (f32(4, 6),)),
        (lambda x: lax.reshape(x, (12, 2)), (f32(3, 4, 2),)),
        (jnp.matmul, (f32(4, 6), f32(6, 2))),
        (lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))), (f32(2, 4, 3), f32(2, 3, 6))),
        (lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME"), (f32(4, 2, 5), f32(6, 2, 3))),
        (lambda x, at: x.at[at].get(mode="clip", wrap_negative_indices=False), (f32(6, 4), i32(2, 3))),
        (lambda x: jnp.sum(x, 1), (f32(4, 3, 6),)),
        (lambda *xs: lax.sort(xs, dimension=0, num_keys=1), (f32(4, 6), f32(4, 6))),
    ],
)
def test_the_main_rules_find_all_that_holds(fn, types):
    equation = equation_of(fn, *types)
    assert found_chunks(equation)
    assert found_chunks(equation) == held_chunks(equation)


# What JAX has and we treat as not partitionable.
WITHOUT_RULE = """
    after_all create_token custom_lin custom_linear_solve dce_sink get swap
    all_gather all_to_all axis_index pmax pmin ppermute psum ragged_all_to_all
""".split()


def test_each_primitive_of_jax_has_a_rule_or_is_known_to_have_none():
    names = {
        value.name for module in (lax, primitives) for value in vars(module).values() if isinstance(value, Primitive)
    }
    assert len(names) > 150
    assert names - RULES.keys() - BODY_RULES.keys() <= set(WITHOUT_RULE)
    assert not (RULES.keys() | BODY_RULES.keys()) & set(WITHOUT_RULE)


def test_no_primitive_has_two_rules():
    families = [
        module.RULES for module in vars(rule_table).values() if isinstance(getattr(module, "RULES", None), dict)
    ]
    assert len(families) == 9
    assert sum(map(len, families)) == len(RULES) + len(BODY_RULES)


def test_the_elementwise_list_holds_what_jax_says_is_elementwise():
    """By the shapes: a unary function of `lax` whose output has its input's shape, and one element behind each."""
    for name in "abs ceil cos erf exp floor log1p logistic neg rsqrt sign sin sqrt square tanh".split():
        equation = equation_of(getattr(lax, name), jax.ShapeDtypeStruct((4, 6), jnp.float32))
        assert found_chunks(equation) == held_chunks(equation, num_draws=4)
