"""Gradients of kernels in groups, in all that can hold them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxquard.pricing.program.insert_constraints import gather_grouped
from jaxquard.pricing.program.lower_program import lower_program
from tests.pricing.programs import array, line_mesh, make

CHANNELS = 8


def grid_mesh(*sizes):
    return jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def depthwise(x, kernel):
    numbers = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=numbers, feature_group_count=CHANNELS)


def gradient(kernel, x):
    return jax.grad(lambda kernel: jnp.sum(jnp.sin(depthwise(x, kernel))))(kernel)


@jax.custom_vjp
def with_own_rule(kernel, x):
    return gradient(kernel, x)


with_own_rule.defvjp(lambda kernel, x: (gradient(kernel, x), ()), lambda _, grad: (grad, None))

IN = {
    "the step itself": gradient,
    "a call": jax.jit(gradient),
    "a checkpoint": jax.checkpoint(gradient),
    "a custom rule": with_own_rule,
    "a scan": lambda kernel, x: lax.scan(lambda sum_, _: (sum_ + gradient(kernel, x), None), kernel, None, length=2)[0],
    "a branch": lambda kernel, x: lax.cond(x[0, 0, 0] > 9, lambda: kernel, lambda: gradient(kernel, x)),
    "a loop in a call": jax.jit(
        lambda kernel, x: lax.while_loop(
            lambda carry: carry[0] < 2, lambda carry: (carry[0] + 1, carry[1] + gradient(kernel, x)), (0, kernel)
        )[1]
    ),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("place", IN)
def test_the_numbers_are_right_in(place):
    fn, mesh = IN[place], grid_mesh(2, 4)
    kernel = jax.random.normal(jax.random.key(0), (3, 1, CHANNELS))
    x = jax.random.normal(jax.random.key(1), (16, 4, CHANNELS))
    specs = P(), P("data")
    program = make(fn, array(*kernel.shape), array(*x.shape), ins=specs)
    placed = [jax.device_put(*pair) for pair in zip((kernel, x), (NamedSharding(mesh, s) for s in specs), strict=True)]
    (found,) = lower_program(program, mesh=mesh).compile()(*placed)
    np.testing.assert_allclose(found, jax.jit(fn)(kernel, x), rtol=1e-4, atol=1e-4)


def test_on_one_axis_nothing_is_gathered():
    closed = jax.make_jaxpr(gradient)(array(3, 1, CHANNELS), array(16, 4, CHANNELS))
    assert gather_grouped(closed, mesh=line_mesh()) is closed
    assert gather_grouped(closed, mesh=grid_mesh(1, 8)) is closed
    assert "sharding_constraint" in str(gather_grouped(closed, mesh=grid_mesh(4, 2)))
