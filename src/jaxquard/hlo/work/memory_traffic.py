"""The bytes that an operation reads from a chip's memory and writes to it.

A fusion reads its operands and writes its results, and what it computes in between stays in registers. An operand of
which it takes slices alone counts by these, and a result that it updates in place by the update: the layers of a scan
would otherwise read and write the whole stack in every iteration.
"""

import functools

from jaxquard.hlo.module import ArrayShape, Computation, Module, Operation

_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
# Of these, names of the same array.
_ALIASES = frozenset({"bitcast", "get-tuple-element", "tuple", "opt-barrier", "reshape"})
_MAIN_MEMORY, _COLLECTIVE_MEMORY = 0, 1


def memory_traffic(operation: Operation, computation: Computation, module: Module, *, is_tpu: bool) -> tuple[int, int]:
    """Returns the bytes read and written.

    Args:
        is_tpu: memory space 1 is the chip's own vector memory; on a GPU it is main memory too.
    """
    counted = functools.partial(_size_bytes, is_tpu=is_tpu)
    operands = [computation.operation(name) for name in operation.operands if name in computation.positions]
    if operation.opcode == "fusion":
        fused = module.computations[operation.calls[0]]
        reads = [
            _fused_read(fused, number, sum(map(counted, operand.results))) for number, operand in enumerate(operands)
        ]
        return sum(reads), _fused_written(fused, operation, counted)
    whole = sum(sum(map(counted, operand.results)) for operand in operands)
    written = sum(map(counted, operation.results))
    if operation.opcode in _SLICES:
        return min(whole, written), written
    if operation.opcode == "dynamic-update-slice":
        update = sum(map(counted, operands[1].results))
        return update, update
    if operation.opcode == "scatter":
        update = sum(map(counted, operands[-1].results))
        return 2 * update, update
    return whole, written


def _size_bytes(shape: ArrayShape, *, is_tpu: bool) -> int:
    is_main = shape.memory_space in ((_MAIN_MEMORY,) if is_tpu else (_MAIN_MEMORY, _COLLECTIVE_MEMORY))
    return shape.size_bytes if is_main else 0


def _fused_read(fused: Computation, number: int, whole_bytes: int) -> int:
    """Returns the bytes that a fusion reads of an operand."""
    parameters = (one for one in fused.operations if one.opcode == "parameter" and one.arguments == str(number))
    parameter = next(parameters, None)
    if parameter is None or not whole_bytes:
        return whole_bytes
    taken, waiting = 0, [parameter.name]
    users = _users(fused)
    while waiting:
        name = waiting.pop()
        for user in users.get(name, ()):
            if user.opcode in _ALIASES:
                waiting.append(user.name)
            elif user.opcode in _SLICES and user.operands[0] == name:
                taken += user.result_bytes
            elif user.opcode != "dynamic-update-slice" or user.operands[0] != name:
                return whole_bytes
    return min(taken, whole_bytes)


def _users(computation: Computation) -> dict[str, list[Operation]]:
    users: dict[str, list[Operation]] = {}
    for operation in computation.operations:
        for name in operation.operands:
            users.setdefault(name, []).append(operation)
    return users


def _fused_written(fused: Computation, operation: Operation, counted: functools.partial[int]) -> int:
    """Returns the bytes that a fusion writes: of results that it updates in place, the updates."""
    (root,) = (one for one in fused.operations if one.is_root)
    parts = [fused.operation(name) for name in root.operands] if root.opcode == "tuple" else [root]
    if len(parts) != len(operation.results):
        return sum(map(counted, operation.results))
    return sum(
        min(counted(result), _update_bytes(fused, part)) for part, result in zip(parts, operation.results, strict=True)
    )


def _update_bytes(fused: Computation, part: Operation) -> int:
    while part.opcode in ("bitcast", "reshape") and part.operands:
        part = fused.operation(part.operands[0])
    if part.opcode == "dynamic-update-slice":
        return fused.operation(part.operands[1]).result_bytes
    return part.result_bytes
