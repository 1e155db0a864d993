"""Backward products find the forward ones whose gradients they make, dim by dim."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import match_backward
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.ir.jaxpr_tools import evaluate, make_jaxpr
from tests.intraop.patterns import PATTERNS
from tests.intraop.steps import ZOO, inputs, sgd, zoo_types


def graph_of(step, args):
    return StepGraph(step=trace_step(step, args))


def backward_products(graph):
    """Those that compute something new."""
    return [
        position
        for position, equation in enumerate(graph.equations)
        if equation.primitive.name == "dot_general"
        and graph.phases[position] is EquationPhase.BACKWARD
        and graph.first(equation.outvars[0]) is equation.outvars[0]
    ]


def check_dims(graph, matches):
    """A gradient has a dim for each dim of its value, of the same size."""
    for var, cotangent in matches.cotangents.items():
        equation = graph.equations[cotangent.position]
        value = equation.outvars[0] if cotangent.place is None else equation.invars[cotangent.place]
        assert sorted(cotangent.dims) == list(range(len(value.aval.shape)))
        assert var.aval.shape == tuple(value.aval.shape[dim] for dim in cotangent.dims)


class TestEveryBackwardProduct:
    @pytest.mark.thin(2)
    @pytest.mark.parametrize("remat", [False, True])
    @pytest.mark.parametrize("name", ZOO)
    def test_of_the_zoo_is_matched(self, name, remat):
        graph = graph_of(*zoo_types(name, remat=remat, dropout_rate=0.1))
        matches = match_backward(graph)
        assert set(matches.contractions) == set(backward_products(graph))
        check_dims(graph, matches)

    @pytest.mark.parametrize("name", sorted(PATTERNS))
    def test_of_what_else_users_write_is_matched(self, name):
        graph = graph_of(*PATTERNS[name]())
        matches = match_backward(graph)
        assert set(matches.contractions) == set(backward_products(graph))
        check_dims(graph, matches)


@st.composite
def products(draw, sizes):
    """An einsum of two operands with at most two dims of each kind, in any order."""
    letters = iter("abcdefgh")
    groups = [[next(letters) for _ in range(draw(st.integers(0, 2)))] for _ in range(4)]
    batch, left, right, summed = groups
    one, other, out = (
        draw(st.permutations(dims)) for dims in (batch + left + summed, batch + right + summed, batch + left + right)
    )
    size = {letter: draw(st.sampled_from(sizes)) for letter in "abcdefgh"}
    shapes = [tuple(size[letter] for letter in dims) for dims in (one, other)]
    return f"{''.join(one)},{''.join(other)}->{''.join(out)}", shapes


def values_of(graph, args, variables):
    """The values of variables in the step."""
    jaxpr = graph.step.jaxpr
    return evaluate(make_jaxpr(jaxpr.invars, jaxpr.eqns, list(variables)))(*jax.tree.leaves(args))


def gradients_by_jax(forward, lhs, rhs):
    """Of the sum of the exponentials of a product: by the product, and by each operand."""

    def product(lhs, rhs):
        return jax.lax.dot_general(lhs, rhs, forward.params["dimension_numbers"])

    of_operands = jax.grad(lambda *pair: jnp.sum(jnp.exp(product(*pair))), argnums=(0, 1))(lhs, rhs)
    return {None: jnp.exp(product(lhs, rhs)), 0: of_operands[0], 1: of_operands[1]}


@settings(max_examples=15)
@given(products([2]), st.booleans())
def test_gradients_have_their_dims_where_sizes_are_ambiguous(product, is_swapped):
    """All dims have one size, so only the numbers can: each gradient, its dims in order, is what JAX says it is."""
    spec, shapes = product
    weight, data = inputs(*shapes[0], seed=1), inputs(*shapes[1], seed=2)

    def loss(weight, data):
        operands = (jnp.sin(weight), jnp.cos(data))
        if is_swapped:
            ins, out = spec.split("->")
            first, second = ins.split(",")
            return jnp.sum(jnp.exp(jnp.einsum(f"{second},{first}->{out}", operands[1], operands[0])))
        return jnp.sum(jnp.exp(jnp.einsum(spec, *operands)))

    def step(params, data):
        value, (of_weight, of_data) = jax.value_and_grad(loss, argnums=(0, 1))(params, data)
        return params - of_weight, data - of_data, value

    graph = graph_of(step, (weight, data))
    matches = match_backward(graph)
    assert set(matches.contractions) == set(backward_products(graph))
    check_dims(graph, matches)
    (position,) = graph.contractions
    forward = graph.equations[position]

    @jax.jit
    def both(weight, data):
        lhs, rhs = values_of(graph, (weight, data), forward.invars)
        wanted = gradients_by_jax(forward, lhs, rhs)
        in_order = [jnp.transpose(wanted[cotangent.place], cotangent.dims) for cotangent in matches.cotangents.values()]
        return values_of(graph, (weight, data), matches.cotangents), in_order

    for found, wanted in zip(*both(weight, data), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_product_of_a_value_with_itself_has_two_gradients():
    def loss(params, batch):
        hidden = batch @ params
        return jnp.sum(jnp.einsum("bi,bj->ij", hidden, hidden) ** 2)

    graph = graph_of(sgd(loss), (inputs(8, 8), inputs(8, 8)))
    matches = match_backward(graph)
    assert set(matches.contractions) == set(backward_products(graph))
    check_dims(graph, matches)


def test_weights_used_in_two_products_are_distinguished_by_their_data():
    def loss(params, batch):
        return jnp.sum(jnp.tanh(jnp.tanh(batch @ params) @ params))

    graph = graph_of(sgd(loss), (inputs(8, 8), inputs(8, 8)))
    matches = match_backward(graph)
    forward = list(graph.contractions)
    # The last product is differentiated first.
    assert list(dict.fromkeys(found.forward for found in matches.contractions.values())) == forward[::-1]


@pytest.mark.parametrize("order", list(itertools.permutations("bsd")))
def test_transposed_data_is_seen_through(order):
    def loss(params, batch):
        moved = jnp.einsum(f"bsd->{''.join(order)}", batch @ params["first"])
        return jnp.sum(jnp.einsum(f"{''.join(order)},de->bse", moved, params["second"]) ** 2)

    params = {"first": inputs(8, 8, seed=1), "second": inputs(8, 8, seed=2)}
    graph = graph_of(sgd(loss), (params, inputs(8, 8, 8)))
    matches = match_backward(graph)
    assert set(matches.contractions) == set(backward_products(graph))
    assert len(matches.contractions) == 3
