"""The parts of fused products have a dim of their own, and the step computes the same."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxquard.intraop.step.fused.separate_parts import separate_parts
from jaxquard.intraop.step.traced_step import trace_step
from tests.intraop.fused_steps import WAYS, fused_step
from tests.intraop.patterns import PATTERNS
from tests.intraop.run_traced import run_traced
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import inputs, sgd, weights, zoo_types


def weight_shapes(step, args):
    """Of the second operands of all products with state, in the order of the program."""
    jaxpr = trace_step(step, args).jaxpr
    return [tuple(eqn.invars[1].aval.shape) for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]


class TestFound:
    @pytest.mark.parametrize("way", WAYS)
    def test_queries_keys_and_values_in_every_way_of_taking_them_apart(self, way):
        shapes = weight_shapes(*fused_step(way, num_layers=1))
        assert (64, 3, 64) in shapes
        assert (64, 192) not in shapes

    @pytest.mark.parametrize("way", WAYS)
    def test_the_backward_has_the_same_parts(self, way):
        """Nothing of it has the columns of all three in one dim, but the gradient that the update takes."""
        jaxpr = trace_step(*fused_step(way, num_layers=2)).jaxpr
        fused = [var.aval.shape for eqn in jaxpr.eqns for var in eqn.outvars if var.aval.shape[-1:] == (192,)]
        assert not [shape for shape in fused if shape[:2] == (8, 4)]
        assert [eqn for eqn in jaxpr.eqns if eqn.outvars[0].aval.shape == (3, 64, 64)]

    def test_gate_and_up(self):
        assert (64, 2, 128) in weight_shapes(*fused_step(num_layers=1, halves=True))

    def test_under_a_checkpoint_what_it_recomputes_as_well(self):
        shapes = weight_shapes(*fused_step(num_layers=2, remat=True))
        # Twice the forward, twice computed again, and the gradient of what enters the second layer.
        assert shapes.count((64, 3, 64)) == 5
        assert (64, 192) not in shapes

    def test_nothing_in_models_whose_weights_have_the_parts_apart(self):
        for name in ("gpt-tiny", "llama-tiny"):
            jaxpr = trace_step(*zoo_types(name, num_layers=1)).jaxpr
            assert separate_parts(jaxpr) is jaxpr

    def test_nothing_of_unequal_parts(self):
        assert (64, 128) in weight_shapes(*PATTERNS["queries, keys, values in unequal parts"]())

    def test_a_stream_through_all_layers_is_not_taken_apart_for_one_that_halves_it(self):
        def loss(params, x):
            for number in "12":
                x = x + jnp.tanh(x @ params["w" + number]) @ params["o" + number]
            mean, spread = jnp.split(x, 2, axis=-1)
            return jnp.sum(mean * jnp.exp(spread))

        args = weights(w1=(16, 32), o1=(32, 16), w2=(16, 32), o2=(32, 16)), inputs(8, 16)
        # Only the last product has no other use.
        assert weight_shapes(sgd(loss), args)[:4] == [(16, 32), (32, 16), (16, 32), (32, 2, 8)]

    def test_a_product_with_another_use_than_its_parts_stays(self):
        def loss(params, x):
            both = x @ params["w"]
            left, right = jnp.split(both, 2, axis=-1)
            return jnp.sum(left * right) + jnp.sum(both**2)

        args = weights(w=(16, 32)), inputs(8, 16)
        assert (16, 2, 16) not in weight_shapes(sgd(loss), args)
        check_same(run_traced(trace_step(sgd(loss), args), args), jax.jit(sgd(loss))(*args))


class TestSameNumbers:
    @pytest.mark.parametrize(
        "way", ["slices", *(pytest.param(w, marks=pytest.mark.slow) for w in WAYS if w != "slices")]
    )
    def test_in_every_way(self, way):
        step, args = fused_step(way, num_layers=1, dim=16, heads=2)
        check_same(run_traced(trace_step(step, args), args), jax.jit(step)(*args))

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{"remat": True}, {"halves": True, "bias": False}])
    def test_with_checkpoints_and_halves(self, options):
        step, args = fused_step(**options)
        check_same(run_traced(trace_step(step, args), args), jax.jit(step)(*args))

    @pytest.mark.slow
    def test_with_weights_that_are_cast(self):
        """Each rounding of bfloat16 is one of 2**-9."""
        step, args = fused_step(dtype=jnp.bfloat16, num_layers=1)
        check_same(run_traced(trace_step(step, args), args), jax.jit(step)(*args), tolerance=2**-6)

    def test_parts_that_the_backward_divides_otherwise(self):
        """The gradient of a fused value is sliced across its parts, in a gradient of the gradient."""

        def loss(params, x):
            def inner(y):
                left, right = jnp.split(y @ params["w"], 2, axis=-1)
                return jnp.sum(jnp.tanh(left) * right)

            return jnp.sum(jax.grad(inner)(x)[:, 3:] ** 2)

        step, args = sgd(loss), (weights(w=(16, 32)), inputs(8, 16))
        check_same(run_traced(trace_step(step, args), args), jax.jit(step)(*args))

    @pytest.mark.slow
    @settings(max_examples=25, deadline=None)
    @given(
        way=st.sampled_from(sorted(WAYS)),
        heads=st.sampled_from([1, 2, 3, 4]),
        head_dim=st.sampled_from([1, 2, 5]),
        batch=st.integers(1, 3),
        length=st.integers(1, 3),
        bias=st.booleans(),
        remat=st.booleans(),
        halves=st.booleans(),
    )
    def test_of_any_shape(self, way, heads, head_dim, batch, length, bias, remat, halves):
        step, args = fused_step(
            way,
            num_layers=2,
            dim=heads * head_dim,
            heads=heads,
            batch=batch,
            length=length,
            bias=bias,
            remat=remat,
            halves=halves,
        )
        check_same(run_traced(trace_step(step, args), args), jax.jit(step)(*args))
