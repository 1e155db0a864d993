"""A jaxpr whose variables are not defined once, before their uses, is found out."""

import jax
import jax.numpy as jnp
import pytest

from jaxquard.ir.jaxpr_tools import make_jaxpr, new_var
from jaxquard.pipeline.check_step import check_jaxpr

JAXPR = jax.make_jaxpr(lambda x: jnp.cos(jnp.sin(x)) * 2.0)(jnp.ones(2)).jaxpr
SIN, COS, MUL = JAXPR.eqns


def test_a_traced_jaxpr_is_well_formed():
    check_jaxpr(JAXPR)


@pytest.mark.parametrize(
    ("inputs", "equations", "outputs", "message"),
    [
        (
            JAXPR.invars,
            [COS, SIN, MUL],
            JAXPR.outvars,
            r"a cos of type float32\[2\] uses a variable that nothing",
        ),
        (JAXPR.invars, [SIN, SIN, COS, MUL], JAXPR.outvars, r"a sin of type float32\[2\] defines a variable a second"),
        (JAXPR.invars * 2, [SIN, COS, MUL], JAXPR.outvars, "the inputs define a variable a second time"),
        (JAXPR.invars, [SIN, COS, MUL], [new_var(JAXPR.outvars[0])], "output 0 is a variable that nothing defines"),
    ],
    ids=["order", "twice", "inputs", "output"],
)
def test_what_is_not_well_formed(inputs, equations, outputs, message):
    with pytest.raises(AssertionError, match=message):
        check_jaxpr(make_jaxpr(inputs, equations, outputs))
