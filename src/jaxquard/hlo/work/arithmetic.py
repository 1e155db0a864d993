"""The arithmetic of an operation beside its matrix products: one operation for each element that it computes."""

import math
from collections.abc import Iterator

from jaxquard.hlo.module import Computation, Module, Operation
from jaxquard.hlo.work.matrix_products import PRODUCTS

# They move elements, or give them other names.
_MOVES = frozenset(
    "add-dependency after-all bitcast bitcast-convert broadcast concatenate constant convert copy custom-call domain "
    "dynamic-slice dynamic-update-slice fusion gather get-dimension-size get-tuple-element iota opt-barrier pad "
    "parameter partition-id replica-id reshape reverse rng-get-and-update-state slice transpose tuple".split()
)
_COSTLY = frozenset(
    "atan2 cbrt cosine divide erf exponential exponential-minus-one log log-plus-one logistic power remainder rsqrt "
    "sine sqrt tan tanh".split()
)
# About as many simple operations as a polynomial for such a function takes.
COSTLY_ARITHMETIC = 10


def element_arithmetic(operation: Operation, computation: Computation, module: Module) -> int:
    """Returns the operations on elements; functions such as `exponential` count for ten, sums by what they take."""
    return sum(_arithmetic(one, holder) for one, holder in _fused(operation, computation, module))


def _fused(operation: Operation, computation: Computation, module: Module) -> Iterator[tuple[Operation, Computation]]:
    if operation.opcode != "fusion":
        yield operation, computation
        return
    for name in operation.calls:
        holder = module.computations[name]
        for inner in holder.operations:
            yield from _fused(inner, holder, module)


def _arithmetic(operation: Operation, computation: Computation) -> int:
    if operation.opcode in _MOVES or operation.opcode in PRODUCTS:
        return 0
    arrays = list(operation.results)
    if operation.opcode.startswith(("reduce", "sort", "select-and-scatter")):
        arrays += [shape for name in operation.operands for shape in computation.operation(name).results]
    elements = max((math.prod(shape.sizes) for shape in arrays), default=0)
    return elements * (COSTLY_ARITHMETIC if operation.opcode in _COSTLY else 1)
