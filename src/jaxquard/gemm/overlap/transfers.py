"""The transfers of a scheduled program, and whether a product runs beside them.

A transfer that can hide has a start and a done, which the TPU compiler prints in one of three ways; the pair is found
by following the done's operands back to a start:

    all-gather-start ... all-gather-done, collective-permute-start ... collective-permute-done, and the like
    async-start ... async-done, whose computation holds the collective
    async-collective-start ... async-collective-done: fusions around a custom call AsyncCollectiveStart or
        AsyncCollectiveDone; products in between may carry the transfer's steps with them

It is hidden if a product (a convolution or dot, alone or in a fusion) is scheduled between the two. Everything else
that holds a collective is a transfer during which the chip waits.

A loop has a schedule of its own, that of its body, and its transfers happen once an iteration.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxquard.hlo import Computation, Module, Operation

PRODUCTS = frozenset({"convolution", "dot"})
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledCollective:
    """One collective of the program's main computation, or of a loop.

    Attributes:
        name: of the operation that starts it.
        kind: its opcode, without -start.
        source: its place in the user's program, JAX's `op_name`: names of scopes and a primitive.
        is_hidden: a product is scheduled between its start and its done.
        times: the number of times that it happens: the iterations of the loop that it is in.
    """

    name: str
    kind: str
    source: str
    is_hidden: bool
    times: int = 1


def scheduled_collectives(module: Module) -> tuple[ScheduledCollective, ...]:
    """Returns the transfers of a scheduled module, in the order in which they start; those of loops come last.

    Raises:
        ValueError: if the module is not scheduled, so that its order says nothing, or a transfer has no end.
    """
    if not module.is_scheduled:
        raise ValueError(f"module {module.name} is not scheduled (is_scheduled=true); take the text of compiled code.")
    return tuple(
        transfer
        for computation, times in _schedules(module, module.main, 1)
        for transfer in _list_scheduled(module, computation, times)
    )


def _schedules(module: Module, computation: Computation, times: int) -> Iterator[tuple[Computation, int]]:
    """Returns a computation and the bodies of its loops, each with the number of times that it runs."""
    yield computation, times
    for loop in computation.operations:
        if loop.opcode == "while":
            body = module.computations[_called(loop, "body")]
            yield from _schedules(module, body, times * _num_iterations(module, loop))


def _num_iterations(module: Module, loop: Operation) -> int:
    """Returns the iterations of a loop that counts up from 0, as JAX writes `scan` and `fori_loop` of known length.

    Raises:
        ValueError: if the loop's condition is another one.
    """
    condition = module.computations[_called(loop, "condition")]
    (root,) = (operation for operation in condition.operations if operation.is_root)
    limits = [condition.operation(name) for name in root.operands if name in condition.positions]
    numbers = [int(limit.arguments) for limit in limits if limit.opcode == "constant"]
    if root.opcode != "compare" or root.attribute("direction") != "LT" or len(numbers) != 1:
        raise ValueError(f"the loop {loop.name} has no number of iterations in its text; its condition is {root.name}.")
    return numbers[0]


def _called(operation: Operation, attribute: str) -> str:
    called = operation.attribute(attribute)
    assert called is not None, operation
    return called.removeprefix("%")


def _list_scheduled(module: Module, scheduled: Computation, times: int) -> Iterator[ScheduledCollective]:
    """Returns the transfers of one computation."""
    roles = {operation.name: _role(module, scheduled, operation) for operation in scheduled.operations}
    done_of = _pair(module, scheduled, roles)
    for position, operation in enumerate(scheduled.operations):
        role = roles[operation.name]
        if role == "start" and operation.name not in done_of:
            raise ValueError(f"the transfer {operation.name} has no end in the program; its text is not understood.")
        if role in ("start", "sync"):
            end = scheduled.positions[done_of[operation.name]] if role == "start" else position
            between = scheduled.operations[position + 1 : end]
            collective = _collective(module, operation)
            assert collective is not None
            yield ScheduledCollective(
                name=operation.name,
                kind=collective.opcode.removesuffix("-start"),
                source=(collective.attribute("op_name") or "").strip('"'),
                is_hidden=any(is_product(module, other) for other in between),
                times=times,
            )


def is_product(module: Module, operation: Operation) -> bool:
    """Returns whether an operation multiplies matrices, by itself or in what it runs."""
    return any(inner.opcode in PRODUCTS for inner in module.inside(operation))


def _role(module: Module, scheduled: Computation, operation: Operation) -> str | None:
    """Returns `start`, `done` or `sync`; None for what starts no transfer and ends none, and for loops."""
    if operation.opcode == "while":
        return None
    inside = module.inside(operation)
    targets = {inner.attribute("custom_call_target") for inner in inside if inner.opcode == "custom-call"}
    has_collective = any(inner.opcode.startswith(COLLECTIVES) for inner in inside)
    for suffix, role in (("start", "start"), ("done", "done")):
        if f'"AsyncCollective{suffix.capitalize()}"' in targets:
            return role
        if operation.opcode == f"async-{suffix}" or operation.opcode in [f"{kind}-{suffix}" for kind in COLLECTIVES]:
            return (
                role
                if has_collective or (role == "done" and not _ends_no_transfer(module, scheduled, operation))
                else None
            )
    carries = any(inner.opcode in PRODUCTS for inner in inside)
    return "sync" if has_collective and not carries else None


def _ends_no_transfer(module: Module, scheduled: Computation, done: Operation) -> bool:
    """Returns whether a done belongs to a start of something else than a collective, such as a copy."""
    starts = [scheduled.operation(name) for name in done.operands if name in scheduled.positions]
    return any(start.opcode == "async-start" and _role(module, scheduled, start) is None for start in starts)


def _collective(module: Module, operation: Operation) -> Operation | None:
    return next((inner for inner in module.inside(operation) if inner.opcode.startswith(COLLECTIVES)), None)


def _pair(module: Module, scheduled: Computation, roles: dict[str, str | None]) -> dict[str, str]:
    """Returns the done of each start. A product may carry several transfers at once, each with its own chain."""
    done_of: dict[str, str] = {}
    for done in (name for name, role in roles.items() if role == "done"):
        starts = [start for start in _starts_behind(scheduled, roles, done) if start not in done_of]
        chain = _chain(module, scheduled, done)
        start = next(
            (start for start in starts if _chain(module, scheduled, start) == chain), starts[0] if starts else None
        )
        if start is not None:
            done_of[start] = done
    return done_of


def _chain(module: Module, scheduled: Computation, name: str) -> str | None:
    chains = (inner.attribute("chain_id") for inner in module.inside(scheduled.operation(name)))
    return next(filter(None, chains), None)


def _starts_behind(scheduled: Computation, roles: dict[str, str | None], done: str) -> list[str]:
    """Returns the starts that a done's operands lead back to, the nearest first."""
    waiting, seen, found = list(scheduled.operation(done).operands), set(), []
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if roles[name] == "start":
            found.append(name)
        elif roles[name] is None:
            waiting += scheduled.operation(name).operands
    return found
