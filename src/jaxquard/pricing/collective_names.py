"""Which instructions of a compiled program move data between devices, by their names, which traces of runs use.

Not the name decides but the opcode: a fusion may be called `all-reduce_add_fusion` and hold none, or `fusion.3` and
hold one.
"""

import enum
from collections.abc import Mapping

from jaxquard.hlo import Computation, Module, Operation

COLLECTIVES = frozenset(
    {
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "ragged-all-to-all",
        "collective-permute",
        "collective-broadcast",
        "send",
        "recv",
    }
)
_CONTAINERS = frozenset({"while", "conditional", "call"})


class Kind(enum.Enum):
    """What an instruction does with a device's time."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    CONTAINER = "runs others, which count for themselves"


def base_opcode(opcode: str) -> str:
    """The opcode without the half of an asynchronous pair that it may be."""
    return opcode.removesuffix("-start").removesuffix("-done").removesuffix("-update")


def instruction_kinds(module: Module) -> Mapping[str, Kind]:
    """The kind of every instruction, by name."""
    return {
        operation.name: _kind(operation, computation, module)
        for computation in module.computations.values()
        for operation in computation.operations
    }


def _kind(operation: Operation, computation: Computation, module: Module) -> Kind:
    if operation.opcode in _CONTAINERS:
        return Kind.CONTAINER
    first = _first_of_pair(operation, computation)
    if any(base_opcode(inner.opcode) in COLLECTIVES for inner in module.inside(first)):
        return Kind.COLLECTIVE
    return Kind.COMPUTE


def _first_of_pair(operation: Operation, computation: Computation) -> Operation:
    """Follows `async-done` and `async-update`, which may not say what they wait for, to their `async-start`."""
    while operation.opcode in ("async-done", "async-update"):
        operation = computation.operation(operation.operands[0])
    return operation
