"""Small tools of these tests: trace a function into one equation, and write links shortly."""

import jax
import jax.numpy as jnp

from jaxquard.ir.dependence import dependences


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def equations(fn, *types):
    return jax.make_jaxpr(fn)(*types).eqns


def equation_of(fn, *types):
    """The only equation of a function, or the last where those before it make constants."""
    return equations(fn, *types)[-1]


def flat_equations(fn, *types):
    """Its equations, those of inner calls in place of the calls."""

    def opened(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "jit":
                yield from opened(equation.params["jaxpr"].jaxpr)
            else:
                yield equation

    return list(opened(jax.make_jaxpr(fn)(*types)))


def call_of(fn, *types):
    """The function as one equation, whatever it does."""
    (equation,) = equations(jax.jit(lambda *arrays: fn(*arrays)), *types)
    return equation


def table(equation):
    """`[output][input]`: links as text, "-" where the output does not depend on the input."""
    found = dependences(equation)
    return [
        [" ".join(map(str, links)) if is_read else "-" for links, is_read in zip(*rows, strict=True)]
        for rows in zip(found.links, found.reads, strict=True)
    ]


def links(fn, *types):
    """The table of a function's last equation."""
    return table(equation_of(fn, *types))


def links_of_call(fn, *types):
    """The table of a whole function."""
    return table(call_of(fn, *types))
