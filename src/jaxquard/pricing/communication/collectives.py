"""The collectives of a compiled program, with their bytes.

Instructions are found by their opcodes, and named as the traces of runs name them.

Not the name decides but the opcode: a fusion may be called `all-reduce_add_fusion` and hold none, or `fusion.3` and
hold one.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxquard.hlo import Computation, Module, Operation, parse_module, replica_groups

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


class InstructionKind(enum.Enum):
    """The kind of work that an instruction does."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    CONTAINER = "runs others, which count for themselves"


def base_opcode(opcode: str) -> str:
    """The opcode without the half of an asynchronous pair that it may be."""
    return opcode.removesuffix("-start").removesuffix("-done").removesuffix("-update")


def instruction_kinds(module: Module) -> Mapping[str, InstructionKind]:
    """The kind of every instruction, by name."""
    return {
        operation.name: _kind(operation, computation, module)
        for computation in module.computations.values()
        for operation in computation.operations
    }


def _kind(operation: Operation, computation: Computation, module: Module) -> InstructionKind:
    if operation.opcode in _CONTAINERS:
        return InstructionKind.CONTAINER
    first = _first_of_pair(operation, computation)
    if any(base_opcode(inner.opcode) in COLLECTIVES for inner in module.inside(first)):
        return InstructionKind.COLLECTIVE
    return InstructionKind.COMPUTE


def _first_of_pair(operation: Operation, computation: Computation) -> Operation:
    """Follows `async-done` and `async-update`, which may not say what they wait for, to their `async-start`."""
    while operation.opcode in ("async-done", "async-update"):
        operation = computation.operation(operation.operands[0])
    return operation


# By a ring, what each device sends of its result, among so many devices; as much as Alpa and NCCL count.
_SENT_OF_RESULT = {
    "all-reduce": lambda count: 2 * (count - 1) / count,
    "all-gather": lambda count: (count - 1) / count,
    "reduce-scatter": lambda count: count - 1,
    "all-to-all": lambda count: (count - 1) / count,
    "ragged-all-to-all": lambda count: (count - 1) / count,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveInstruction:
    """One collective, as one device sees it.

    Attributes:
        name: of the instruction.
        opcode: without `-start`.
        operand_bytes: what the device sends; several arrays in one collective are added up.
        result_bytes: what it receives.
        group_size: how many devices take part together; 2 for a permutation, where one gives and one takes.
        is_in_loop: whether it stands in a `while`, where it may run many times, and counts once here.

    Example:
        >>> gather = jq.pricing.CollectiveInstruction(
        ...     name="all-gather.1", opcode="all-gather", operand_bytes=1024, result_bytes=8192, group_size=8
        ... )
        >>> gather.sent_bytes
        7168.0
    """

    name: str
    opcode: str
    operand_bytes: int
    result_bytes: int
    group_size: int
    is_in_loop: bool = False

    @property
    def size_bytes(self) -> int:
        """The larger of what the device gives and gets: the array whole over its group, but for an all-to-all."""
        return max(self.operand_bytes, self.result_bytes)

    @property
    def sent_bytes(self) -> float:
        """Bytes that each device sends on a ring; in a permutation or a broadcast, each device that sends."""
        if self.group_size == 1:
            return 0.0
        sent = _SENT_OF_RESULT.get(self.opcode)
        return float(self.size_bytes if sent is None else self.result_bytes * sent(self.group_size))


def collectives(executable: Any) -> tuple[CollectiveInstruction, ...]:
    """The collectives of a compiled program, in the order of its text; an asynchronous pair is one.

    Args:
        executable: the result of `lowered.compile()`.

    Example:
        >>> mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> rows = jax.sharding.NamedSharding(mesh, jax.P("x"))
        >>> total = jax.jit(jnp.sum, in_shardings=rows).lower(jax.ShapeDtypeStruct((64,), jnp.float32)).compile()
        >>> [(found.opcode, found.group_size) for found in jq.pricing.collectives(total)]
        [('all-reduce', 8)]
    """
    return read_collectives(executable.as_text())


def read_collectives(text: str) -> tuple[CollectiveInstruction, ...]:
    """The collectives in the text of a compiled program."""
    module = parse_module(text)
    looped = set(_looped(module))
    return tuple(
        _collective(operation, computation, module, is_in_loop=computation.name in looped)
        for computation in module.computations.values()
        for operation in computation.operations
        # What `async-start` runs is in a computation of its own, and is found there.
        if operation.opcode.removesuffix("-start") in COLLECTIVES - {"recv"}
    )


def _collective(
    operation: Operation, computation: Computation, module: Module, *, is_in_loop: bool
) -> CollectiveInstruction:
    is_start = operation.opcode.endswith("-start")
    # The first half of a pair gives its operands back too, and what it needs besides; the second only the result.
    ended = _done(operation, computation) if is_start else operation
    operand_bytes = sum(computation.operation(name).result_bytes for name in operation.operands)
    return CollectiveInstruction(
        name=operation.name,
        opcode=operation.opcode.removesuffix("-start"),
        operand_bytes=operand_bytes,
        # What is sent arrives elsewhere, and has the size it left with.
        result_bytes=operand_bytes if operation.opcode == "send" else ended.result_bytes,
        group_size=2 if operation.opcode == "send" else _group_size(operation, module),
        is_in_loop=is_in_loop,
    )


def _done(start: Operation, computation: Computation) -> Operation:
    opcode = start.opcode.removesuffix("-start") + "-done"
    return next(other for other in computation.operations if other.opcode == opcode and start.name in other.operands)


def _looped(module: Module) -> Iterator[str]:
    """The computations that loops run, at any depth."""
    for computation in module.computations.values():
        for operation in computation.operations:
            if operation.opcode == "while":
                yield from (name for inner in module.inside(operation) for name in inner.calls)


def _group_size(operation: Operation, module: Module) -> int:
    """Returns the size of the largest group; a permutation that moves nothing has groups of one device."""
    groups = replica_groups(operation, module)
    if "source_target_pairs=" in operation.attributes:
        return 2 if any(source != target for source, target in groups) else 1
    return max(map(len, groups))
