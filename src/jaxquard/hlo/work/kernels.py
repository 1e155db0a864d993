"""The kind of kernel that an operation runs as: by what it computes, whatever it is called."""

import enum
from collections.abc import Iterator

from jaxquard.hlo.module import Computation, Module, Operation
from jaxquard.hlo.work.custom_calls import call_target

_REDUCTIONS = ("reduce", "reduce-window")


class KernelClass(enum.Enum):
    """The kind of kernel that an operation of the chip runs as; a reduction is over the last dim, or over others."""

    PRODUCT = "product"
    ATTENTION = "attention"
    SOFTMAX = "softmax"
    REDUCTION = "reduction"
    COLUMN_REDUCTION = "column_reduction"
    TRANSPOSE = "transpose"
    ELEMENTWISE = "elementwise"


def kernel_class(operation: Operation, computation: Computation, module: Module, *, has_product: bool) -> KernelClass:
    """Returns the kind; the first of these that it has decides."""
    if call_target(operation).startswith("__cudnn$fmha"):
        return KernelClass.ATTENTION
    if has_product:
        return KernelClass.PRODUCT
    inside = list(_inside(operation, computation, module))
    reductions = [(one, holder) for one, holder in inside if one.opcode in _REDUCTIONS]
    opcodes = {one.opcode for one, _ in inside}
    if reductions and "exponential" in opcodes and len(reductions) > 1:
        return KernelClass.SOFTMAX
    if reductions:
        is_last = all(_is_over_last(one, holder) for one, holder in reductions)
        return KernelClass.REDUCTION if is_last else KernelClass.COLUMN_REDUCTION
    is_transpose = "transpose" in opcodes or any(_changes_layout(one, holder) for one, holder in inside)
    return KernelClass.TRANSPOSE if is_transpose else KernelClass.ELEMENTWISE


def widest_dtype(operation: Operation, computation: Computation) -> str:
    """Returns the element type of the largest array that an operation takes or gives."""
    operands = [computation.operation(name) for name in operation.operands if name in computation.positions]
    arrays = [shape for one in (operation, *operands) for shape in one.results]
    return max(arrays, key=lambda shape: shape.size_bytes).dtype if arrays else ""


def _inside(operation: Operation, computation: Computation, module: Module) -> Iterator[tuple[Operation, Computation]]:
    yield operation, computation
    if operation.opcode == "fusion":
        for name in operation.calls:
            for inner in module.computations[name].operations:
                yield from _inside(inner, module.computations[name], module)


def _changes_layout(operation: Operation, computation: Computation) -> bool:
    """Returns true for a copy that orders the dims anew in memory, which is a transpose."""
    if operation.opcode != "copy" or operation.operands[0] not in computation.positions:
        return False
    before, after = computation.operation(operation.operands[0]).results[0], operation.results[0]
    return bool(before.layout and after.layout) and before.memory_order != after.memory_order


def _is_over_last(reduction: Operation, computation: Computation) -> bool:
    dims = (reduction.attribute("dimensions") or "").strip("{}").split(",")
    operand = computation.operation(reduction.operands[0]).results[0]
    return str(len(operand.sizes) - 1) in dims
