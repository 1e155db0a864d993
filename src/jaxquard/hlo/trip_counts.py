"""The number of iterations of a loop: as the compiler says it, or as its counter does.

condition   compare(counter, limit), direction=LT
body        counter + step; 1 as JAX writes it, 2 where a compiler has unrolled the loop
"""

import math

from jaxquard.errors import HloError
from jaxquard.hlo.backend_config import backend_config
from jaxquard.hlo.module import Computation, Module, Operation

_SAME = frozenset({"copy", "bitcast", "convert", "reshape", "copy-done", "copy-start"})


def trip_count(module: Module, loop: Operation, computation: Computation) -> int:
    """Returns the iterations of a loop, as `scan` and `fori_loop` of known length have them.

    Args:
        computation: that has the loop.

    Raises:
        HloError: if neither the compiler nor the counter says how many there are; it quotes the line.
    """
    known = backend_config(loop).get("known_trip_count", {}).get("n")
    if known is not None:
        return int(known)
    counter, limit = _limit(module, module.computations[called(loop, "condition")])
    first, step = (
        _initial(computation, loop, counter),
        _step(module, module.computations[called(loop, "body")], counter),
    )
    if limit is None or first is None or not step:
        raise HloError(
            f"expected a loop with a known number of iterations, such as `lax.scan` makes, but found: {loop.line}"
        )
    return max(0, math.ceil((limit - first) / step))


def called(operation: Operation, attribute: str) -> str:
    """Returns the name of the computation that an attribute names."""
    name = operation.attribute(attribute)
    assert name is not None, operation
    return name.removeprefix("%")


def _limit(module: Module, condition: Computation) -> tuple[int | None, int | None]:
    """Returns the place of the counter in the loop's tuple, and the constant that it is compared with."""
    root = _root(condition)
    compared = [one for one in module.inside(root) if one.opcode == "compare"]
    numbers = [_number(one) for one in (*condition.operations, *(module.inside(root) if root.calls else ()))]
    limits = [number for number in numbers if number is not None]
    places = [_place(condition, name) for name in root.operands]
    found = [place for place in places if place is not None]
    if len(compared) != 1 or compared[0].attribute("direction") != "LT" or len(limits) != 1 or len(found) != 1:
        return None, None
    return found[0], limits[0]


def _root(computation: Computation) -> Operation:
    return next(operation for operation in computation.operations if operation.is_root)


def _number(operation: Operation) -> int | None:
    is_number = operation.opcode == "constant" and operation.arguments.lstrip("-").isdecimal()
    return int(operation.arguments) if is_number else None


def _place(computation: Computation, name: str) -> int | None:
    """Returns the place in the computation's tuple that a value comes from; None if it comes from elsewhere."""
    operation = _origin(computation, name)
    is_taken = (
        operation.opcode == "get-tuple-element" and _origin(computation, operation.operands[0]).opcode == "parameter"
    )
    return int(operation.attribute("index") or 0) if is_taken else None


def _origin(computation: Computation, name: str) -> Operation:
    operation = computation.operation(name)
    while operation.opcode in _SAME and operation.operands:
        operation = computation.operation(operation.operands[0])
    return operation


def _initial(computation: Computation, loop: Operation, place: int | None) -> int | None:
    """Returns the counter before the loop."""
    entered = _origin(computation, loop.operands[0])
    if place is None or entered.opcode != "tuple":
        return None
    return _number(_origin(computation, entered.operands[place]))


def _step(module: Module, body: Computation, place: int | None) -> int | None:
    """Returns what an iteration adds to the counter."""
    root = _root(body)
    if place is None or root.opcode != "tuple":
        return None
    added = _origin(body, root.operands[place])
    lines = module.inside(added) if added.calls else tuple(body.operation(name) for name in added.operands)
    adds = [one for one in (added, *lines) if one.opcode == "add"]
    numbers = [
        number for one in lines if (number := _number(_origin(body, one.name) if one.name in body.positions else one))
    ]
    return numbers[0] if len(adds) == 1 and len(numbers) == 1 else None
