"""Starts and dones: which operation of a schedule begins something asynchronous, and which one waits for it.

Compilers print a pair in one of these ways:

    all-gather-start ... all-gather-done, collective-permute-start ..., copy-start ..., send ... send-done
    async-start ... async-done, whose computation holds the operation
    async-collective-start ... async-collective-done: fusions of a TPU around a custom call AsyncCollectiveStart or
        AsyncCollectiveDone; products in between may carry the transfer's steps with them

The pair is found by following the done's operands back to a start.
"""

import enum
from collections.abc import Mapping

from jaxquard.hlo.module import Computation, Module, Operation
from jaxquard.hlo.work.matrix_products import PRODUCTS

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
    "ragged-all-to-all",
    "collective-broadcast",
)
_TRANSFERS = (*COLLECTIVES, "send", "recv")


class AsyncRole(enum.Enum):
    """The part of an operation in an asynchronous pair."""

    START = "start"
    UPDATE = "update"
    DONE = "done"


def async_role(module: Module, operation: Operation) -> AsyncRole | None:
    """Returns the part of an operation in a pair; None if it is in none."""
    if operation.opcode in ("send", "recv"):
        return AsyncRole.START
    for role in AsyncRole:
        if operation.opcode.endswith(f"-{role.value}"):
            return role
    if operation.opcode == "fusion":
        targets = {
            one.attribute("custom_call_target") for one in module.inside(operation) if one.opcode == "custom-call"
        }
        for role in (AsyncRole.START, AsyncRole.DONE):
            if f'"AsyncCollective{role.value.capitalize()}"' in targets:
                return role
    return None


def find_collective(module: Module, operation: Operation) -> tuple[Operation, Computation | None] | None:
    """Returns the first collective that an operation is or runs, with the computation that holds it; None if none."""
    if is_collective(operation.opcode):
        return operation, None
    for name in operation.calls:
        for inner in module.computations[name].operations:
            if is_collective(inner.opcode):
                return inner, module.computations[name]
            found = find_collective(module, inner) if inner.calls else None
            if found is not None:
                return found[0], found[1] or module.computations[name]
    return None


def is_collective(opcode: str) -> bool:
    """Returns true for collectives, sends and receives, and for the starts of them."""
    return opcode.removesuffix("-start") in _TRANSFERS


def holds_product(module: Module, operation: Operation) -> bool:
    """Returns true if an operation multiplies matrices, by itself or in what it runs."""
    return any(inner.opcode in PRODUCTS for inner in module.inside(operation))


def async_pairs(module: Module, scheduled: Computation) -> Mapping[str, str]:
    """Returns the start of each done of a schedule, by their names.

    A product of a TPU may carry several transfers at once, each with its own chain.
    """
    roles = {operation.name: async_role(module, operation) for operation in scheduled.operations}
    start_of: dict[str, str] = {}
    for done in (name for name, role in roles.items() if role is AsyncRole.DONE):
        found = [start for start in _starts_behind(scheduled, roles, done) if start not in start_of.values()]
        chain = _chain(module, scheduled.operation(done))
        same = [start for start in found if _chain(module, scheduled.operation(start)) == chain]
        if found:
            start_of[done] = (same or found)[0]
    return start_of


def _chain(module: Module, operation: Operation) -> str | None:
    return next(filter(None, (inner.attribute("chain_id") for inner in module.inside(operation))), None)


def _starts_behind(scheduled: Computation, roles: Mapping[str, AsyncRole | None], done: str) -> list[str]:
    """Returns the starts that a done's operands lead back to, the nearest first."""
    waiting, seen, found = list(scheduled.operation(done).operands), set(), []
    while waiting:
        name = waiting.pop(0)
        if name in seen or name not in scheduled.positions:
            continue
        seen.add(name)
        if roles[name] is AsyncRole.START:
            found.append(name)
        elif roles[name] is not AsyncRole.DONE:
            waiting += scheduled.operation(name).operands
    return found
