"""The number of iterations of a loop: as the compiler says it, or as the loop's condition does."""

from jaxquard.errors import HloError
from jaxquard.hlo.backend_config import backend_config
from jaxquard.hlo.module import Computation, Module, Operation


def trip_count(module: Module, loop: Operation) -> int:
    """Returns the iterations of a loop that counts up from 0, as JAX writes `scan` and `fori_loop` of known length.

    Raises:
        HloError: if neither the compiler nor the condition says how many there are.
    """
    known = backend_config(loop).get("known_trip_count", {}).get("n")
    if known is not None:
        return int(known)
    limit = _limit(module, module.computations[called(loop, "condition")])
    if limit is None:
        raise HloError(
            f"expected a loop with a known number of iterations, such as `lax.scan` makes, but found: {loop.line}"
        )
    return limit


def called(operation: Operation, attribute: str) -> str:
    """Returns the name of the computation that an attribute names."""
    name = operation.attribute(attribute)
    assert name is not None, operation
    return name.removeprefix("%")


def _limit(module: Module, condition: Computation) -> int | None:
    """Returns the constant that the counter of a condition is compared with, also inside of a fusion."""
    (root,) = (operation for operation in condition.operations if operation.is_root)
    compared = [one for one in module.inside(root) if one.opcode == "compare"]
    lines = [*condition.operations, *(module.inside(root) if root.calls else ())]
    numbers = [int(one.arguments) for one in lines if one.opcode == "constant" and one.arguments.isdecimal()]
    if len(compared) != 1 or compared[0].attribute("direction") != "LT" or len(numbers) != 1:
        return None
    return numbers[0]
