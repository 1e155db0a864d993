"""Values that every layer of a scan may have by itself: what comes from no input, and the numbers of layers.

JAX takes out of a scan what is the same in every iteration, a mask for instance, and counts layers as it runs. Layers
that were written one by one each make their own mask, and know their number.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend import core

from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var, variables
from jaxquard.pipeline.operations import is_light

# What takes more equations than this is not made anew for each layer.
_MOST_COPIED = 32
_COUNTING: dict[str, Callable[[Any, Any], Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


class FromNothing:
    """What is computed from no input at all, and how."""

    def __init__(self, jaxpr: Jaxpr):
        self._equations = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
        self._places = {id(equation): place for place, equation in enumerate(jaxpr.eqns)}

    def equations(self, var: Var) -> list[Equation] | None:
        """The equations that make a value, in order; None if it depends on an input, or takes much."""
        needed: dict[int, Equation] = {}
        waiting = [var]
        while waiting:
            made_by = self._equations.get(waiting.pop())
            if made_by is None or not is_light(made_by) or made_by.effects or len(needed) > _MOST_COPIED:
                return None
            if self._places[id(made_by)] not in needed:
                needed[self._places[id(made_by)]] = made_by
                waiting.extend(variables(made_by.invars))
        return [needed[place] for place in sorted(needed)]


def count_layers(equation: Equation, inputs: Sequence[Any]) -> Any | None:
    """The result of counting layers, which is known."""
    count = _COUNTING.get(equation.primitive.name)
    if count is None or any(map(is_var, inputs)) or any(atom.aval.shape for atom in inputs):
        return None
    if not np.issubdtype(inputs[0].aval.dtype, np.integer):
        return None
    value = count(*(np.asarray(atom.val, atom.aval.dtype) for atom in inputs))
    build: Any = core.Literal
    return build(np.asarray(value, inputs[0].aval.dtype), inputs[0].aval)


def numbers_of_layers(count: int, type_: Any) -> list[Any]:
    """0, 1, 2 and so on, as literals of a type."""
    build: Any = core.Literal
    return [build(np.asarray(layer, type_.dtype), type_) for layer in range(count)]
