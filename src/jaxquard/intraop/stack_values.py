"""The values of a step while its stacks are taken apart: each whole, or as its layers, or both."""

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax.extend import core

from jaxquard.ir.jaxpr_tools import Equation, Var, is_var, new_var, splice


class StackValues:
    """What the variables of the old step are in the new one, whose equations are appended in order."""

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
        """Puts the layers together, two by two from the first."""
        total = layers[0]
        for layer in layers[1:]:
            (total,) = self.call(lambda left, right: [operation.bind(left, right)], [total, layer], like)
        return total

    def joined(self, atom: Any, like: Equation | None = None) -> Any:
        """The whole value."""
        if not is_var(atom):
            return atom
        if atom not in self.whole:
            (self.whole[atom],) = self.call(lambda *layers: [_stack(layers)], self.layers[atom], like)
        return self.whole[atom]

    def in_layers(self, atom: Any, like: Equation | None = None) -> list[Any]:
        """The value of every layer."""
        if atom not in self.layers:
            whole = self.joined(atom)
            self.layers[atom] = [
                self.call(lambda stack, layer=layer: [_take(stack, layer)], [whole], like)[0]
                for layer in range(atom.aval.shape[0])
            ]
        return self.layers[atom]

    def zeros(self, type_: Any) -> Any:
        """A layer of zeros."""
        (found,) = self.call(lambda: [lax.full(type_.shape, 0, type_.dtype)], [], None)
        if is_var(found):
            self._zeros.add(found)
        return found

    def is_zero(self, atom: Any) -> bool:
        """Whether a value was made by `zeros`."""
        return is_var(atom) and atom in self._zeros

    def call(self, function: Callable[..., Any], inputs: Sequence[Any], like: Equation | None) -> list[Any]:
        """Appends the equations of a small function, as if they were of an equation."""
        equations, results = splice(function, inputs)
        if like is not None:
            equations = [equation.replace(source_info=like.source_info) for equation in equations]
        self.equations.extend(equations)
        return results


def layer_type(var: Var) -> Any:
    """The type of one layer of a stack."""
    return var.aval.update(shape=var.aval.shape[1:])


def _stack(layers: Sequence[Any]) -> Any:
    return lax.concatenate([lax.expand_dims(layer, (0,)) for layer in layers], 0)


def _take(stack: Any, layer: int) -> Any:
    return lax.squeeze(lax.slice_in_dim(stack, layer, layer + 1), (0,))
