"""The values of a step while its scans are opened: each whole, or as its layers, or both.

JAX hoists out of a scan what is the same in every iteration, a mask for instance, and counts layers as it runs. Layers
that were written one by one each make their own mask, and know their number. So every layer of a scan may have its own
copy of what comes from no input (`FromNothing`), and its number as a literal (`count_layers`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core

from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var, new_var, splice, variables
from jaxquard.ir.operations import is_light

# What takes more equations than this is not made anew for each layer.
_MOST_COPIED = 32
_COUNTING: dict[str, Callable[[Any, Any], Any]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


class FromNothing:
    """The values that are computed from no input at all, with their equations."""

    def __init__(self, jaxpr: Jaxpr):
        self._equations = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
        self._places = {id(equation): place for place, equation in enumerate(jaxpr.eqns)}

    def equations(self, var: Var) -> list[Equation] | None:
        """Returns the equations that compute a value, in order; None if it depends on an input, or takes many."""
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
    """Returns the literal that an equation computes from literals when it counts layers; None for others."""
    count = _COUNTING.get(equation.primitive.name)
    if count is None or any(map(is_var, inputs)) or any(atom.aval.shape for atom in inputs):
        return None
    if not np.issubdtype(inputs[0].aval.dtype, np.integer):
        return None
    value = count(*(np.asarray(atom.val, atom.aval.dtype) for atom in inputs))
    build: Any = core.Literal
    return build(np.asarray(value, inputs[0].aval.dtype), inputs[0].aval)


def numbers_of_layers(count: int, type_: Any) -> list[Any]:
    """Returns 0, 1, 2 and so on, as literals of a type."""
    build: Any = core.Literal
    return [build(np.asarray(layer, type_.dtype), type_) for layer in range(count)]


class StackValues:
    """The variables of the old step in the new one, whose equations are appended in order."""

    def __init__(self) -> None:
        self.layers: dict[Var, list[Any]] = {}
        self.whole: dict[Var, Any] = {}
        self.equations: list[Equation] = []
        self._zeros: set[Var] = set()

    def append(self, equation: Equation, inputs: Sequence[Any]) -> None:
        """Appends an equation on whole values."""
        outputs = [new_var(var) for var in equation.outvars]
        self.equations.append(equation.replace(invars=list(inputs), outvars=outputs))
        self.whole.update(zip(equation.outvars, outputs, strict=True))

    def combine(self, operation: core.Primitive, layers: Sequence[Any], like: Equation) -> Any:
        """Combines the layers, two by two from the first."""
        total = layers[0]
        for layer in layers[1:]:
            (total,) = self.call(lambda left, right: [operation.bind(left, right)], [total, layer], like)
        return total

    def joined(self, atom: Any, like: Equation | None = None) -> Any:
        """Returns the whole value."""
        if not is_var(atom):
            return atom
        if atom not in self.whole:
            (self.whole[atom],) = self.call(lambda *layers: [_stack(layers)], self.layers[atom], like)
        return self.whole[atom]

    def in_layers(self, atom: Any, like: Equation | None = None) -> list[Any]:
        """Returns the value of every layer."""
        if atom not in self.layers:
            whole = self.joined(atom)
            self.layers[atom] = [
                self.call(lambda stack, layer=layer: [_take(stack, layer)], [whole], like)[0]
                for layer in range(atom.aval.shape[0])
            ]
        return self.layers[atom]

    def zeros(self, type_: Any) -> Any:
        """Returns a layer of zeros."""
        (found,) = self.call(lambda: [lax.full(type_.shape, 0, type_.dtype)], [], None)
        if is_var(found):
            self._zeros.add(found)
        return found

    def is_zero(self, atom: Any) -> bool:
        """Returns true for a value that `zeros` made."""
        return is_var(atom) and atom in self._zeros

    def call(self, function: Callable[..., Any], inputs: Sequence[Any], like: Equation | None) -> list[Any]:
        """Appends the equations of a small function, with the source of another equation."""
        equations, results = splice(function, inputs)
        if like is not None:
            equations = [equation.replace(source_info=like.source_info) for equation in equations]
        self.equations.extend(equations)
        return results


def layer_type(var: Var) -> Any:
    """Returns the type of one layer of a stack."""
    return var.aval.update(shape=var.aval.shape[1:])


def _stack(layers: Sequence[Any]) -> Any:
    return lax.concatenate([lax.expand_dims(layer, (0,)) for layer in layers], 0)


def _take(stack: Any, layer: int) -> Any:
    return lax.squeeze(lax.slice_in_dim(stack, layer, layer + 1), (0,))
