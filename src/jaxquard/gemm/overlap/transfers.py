"""The transfers of a scheduled program, and whether a product runs beside them.

A transfer that can hide has a start and a done, which the TPU compiler prints in one of three ways; the pair is found
by following the done's operands back to a start:

    all-gather-start ... all-gather-done, collective-permute-start ... collective-permute-done, and the like
    async-start ... async-done, whose computation holds the collective
    async-collective-start ... async-collective-done: fusions around a custom call AsyncCollectiveStart or
        AsyncCollectiveDone; products in between may carry the transfer's steps with them

It is hidden if a product (a convolution or dot, alone or in a fusion) is scheduled between the two. Everything else
that holds a collective is a transfer during which the chip waits.
"""

from dataclasses import dataclass

from jaxquard.hlo import Computation, Module, Operation

PRODUCTS = frozenset({"convolution", "dot"})
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledCollective:
    """One collective of the program's main computation.

    Attributes:
        name: of the operation that starts it.
        kind: its opcode, without -start.
        source: its place in the user's program, JAX's `op_name`: names of scopes and a primitive.
        is_hidden: a product is scheduled between its start and its done.
    """

    name: str
    kind: str
    source: str
    is_hidden: bool


def scheduled_collectives(module: Module) -> tuple[ScheduledCollective, ...]:
    """Returns the transfers of a scheduled module, in the order in which they start.

    Raises:
        ValueError: if the module is not scheduled, so that its order says nothing, or a transfer has no end.
    """
    if not module.is_scheduled:
        raise ValueError(f"module {module.name} is not scheduled (is_scheduled=true); take the text of compiled code.")
    main = module.main
    roles = {operation.name: _role(module, operation) for operation in main.operations}
    done_of = _pair(module, roles)
    transfers = []
    for position, operation in enumerate(main.operations):
        role = roles[operation.name]
        if role == "start" and operation.name not in done_of:
            raise ValueError(f"the transfer {operation.name} has no end in the program; its text is not understood.")
        if role in ("start", "sync"):
            end = main.positions[done_of[operation.name]] if role == "start" else position
            between = main.operations[position + 1 : end]
            collective = _collective(module, operation)
            assert collective is not None
            transfers.append(
                ScheduledCollective(
                    name=operation.name,
                    kind=collective.opcode.removesuffix("-start"),
                    source=(collective.attribute("op_name") or "").strip('"'),
                    is_hidden=any(is_product(module, other) for other in between),
                )
            )
    return tuple(transfers)


def is_product(module: Module, operation: Operation) -> bool:
    """Returns whether an operation multiplies matrices, by itself or in what it runs."""
    return any(inner.opcode in PRODUCTS for inner in module.inside(operation))


def _role(module: Module, operation: Operation) -> str | None:
    """Returns `start`, `done` or `sync`; None for what starts no transfer and ends none."""
    inside = module.inside(operation)
    targets = {inner.attribute("custom_call_target") for inner in inside if inner.opcode == "custom-call"}
    has_collective = any(inner.opcode.startswith(COLLECTIVES) for inner in inside)
    for suffix, role in (("start", "start"), ("done", "done")):
        if f'"AsyncCollective{suffix.capitalize()}"' in targets:
            return role
        if operation.opcode == f"async-{suffix}" or operation.opcode in [f"{kind}-{suffix}" for kind in COLLECTIVES]:
            return role if has_collective or (role == "done" and not _ends_no_transfer(module, operation)) else None
    carries = any(inner.opcode in PRODUCTS for inner in inside)
    return "sync" if has_collective and not carries else None


def _ends_no_transfer(module: Module, done: Operation) -> bool:
    """Returns whether a done belongs to a start of something else than a collective, such as a copy."""
    starts = [module.main.operation(name) for name in done.operands if name in module.main.positions]
    return any(start.opcode == "async-start" and _role(module, start) is None for start in starts)


def _collective(module: Module, operation: Operation) -> Operation | None:
    return next((inner for inner in module.inside(operation) if inner.opcode.startswith(COLLECTIVES)), None)


def _pair(module: Module, roles: dict[str, str | None]) -> dict[str, str]:
    """Returns the done of each start. A product may carry several transfers at once, each with its own chain."""
    done_of: dict[str, str] = {}
    for done in (name for name, role in roles.items() if role == "done"):
        starts = [start for start in _starts_behind(module.main, roles, done) if start not in done_of]
        chain = _chain(module, done)
        start = next((start for start in starts if _chain(module, start) == chain), starts[0] if starts else None)
        if start is not None:
            done_of[start] = done
    return done_of


def _chain(module: Module, name: str) -> str | None:
    return next(
        filter(None, (inner.attribute("chain_id") for inner in module.inside(module.main.operation(name)))), None
    )


def _starts_behind(main: Computation, roles: dict[str, str | None], done: str) -> list[str]:
    """Returns the starts that a done's operands lead back to, the nearest first."""
    waiting, seen, found = list(main.operation(done).operands), set(), []
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if roles[name] == "start":
            found.append(name)
        elif roles[name] is None:
            waiting += main.operation(name).operands
    return found
