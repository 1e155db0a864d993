"""Gives every result of the step a buffer of its own.

    in (a, a, 1.0)      (a: an input that is not donated)
    =>
    b = copy a ; c = copy a ; d = copy 1.0 in (b, c, d)

A result that is an input, another result or a literal would share its buffer, and a later step
that donates one of the two would take the other with it. A donated input may pass straight
through.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxquard.ir.jaxpr_tools import Equation, is_var, make_jaxpr, splice
from jaxquard.ir.step import Step


def own_results(step: Step, *, donated_args: Collection[int]) -> Step:
    """Copies results that are not values of their own."""
    jaxpr = step.jaxpr
    donated = {jaxpr.invars[arg] for arg in donated_args}
    shared = set(jaxpr.invars) - donated
    equations: list[Equation] = list(jaxpr.eqns)
    outputs: list[Any] = []
    for atom in jaxpr.outvars:
        if not is_var(atom):
            value = np.asarray(atom.val, atom.aval.dtype)
            made, (atom,) = splice(lambda value=value: [lax.optimization_barrier(value)], [])
            equations.extend(made)
        elif atom in shared:
            made, (atom,) = splice(lambda array: [jnp.copy(array)], [atom])
            equations.extend(made)
        else:
            shared.add(atom)
        outputs.append(atom)
    return replace(step, jaxpr=make_jaxpr(jaxpr.invars, equations, outputs))
