"""The users of each instruction of a compiled program: they start only when its result is there."""

from collections import defaultdict
from collections.abc import Mapping

from jaxquard.hlo import Computation, Module, Operation

# They do no work, and traces do not show them.
_TRANSPARENT = frozenset({"get-tuple-element", "tuple", "bitcast", "optimization-barrier"})


def instruction_users(module: Module) -> Mapping[str, frozenset[str]]:
    """For each instruction, those that cannot start before it has ended, by name; some, not all of them.

    What ends the body of a loop is waited for by the condition, and by the users of the loop; what ends a branch or a
    called computation, by the users of its caller.
    """
    users: dict[str, set[str]] = defaultdict(set)
    for computation in module.computations.values():
        for operation in computation.operations:
            for name in _sources(operation, computation):
                users[name].add(operation.name)
    for computation in module.computations.values():
        for caller in computation.operations:
            for called in _run_apart(caller, module):
                for name in _results(called):
                    users[name] |= users[caller.name] | _conditions(caller, module)
    return {name: frozenset(found) for name, found in users.items()}


def _sources(operation: Operation, computation: Computation) -> set[str]:
    """The instructions that do work whose results an instruction takes."""
    found, waiting = set(), list(operation.operands)
    while waiting:
        source = computation.operation(waiting.pop())
        if source.opcode in _TRANSPARENT:
            waiting += source.operands
        else:
            found.add(source.name)
    return found


def _results(computation: Computation) -> set[str]:
    (root,) = (operation for operation in computation.operations if operation.is_root)
    return _sources(root, computation) if root.opcode in _TRANSPARENT else {root.name}


def _run_apart(caller: Operation, module: Module) -> list[Computation]:
    """The computations whose instructions run one by one."""
    runs = caller.opcode in ("while", "conditional", "call")
    return [module.computations[name] for name in caller.calls] if runs else []


def _conditions(caller: Operation, module: Module) -> set[str]:
    """The instructions that decide whether a loop goes on."""
    name = caller.attribute("condition")
    if caller.opcode != "while" or name is None:
        return set()
    return {operation.name for operation in module.computations[name.removeprefix("%")].operations}
