"""The bytes that each device sends in a compiled program, by the closed formulas, as an oracle for symbolic ones."""

import math
import re

from jaxquard.hlo.parse_module import parse_module

# Per collective, what a device sends of its result, among so many devices.
_SENT = {
    "all-reduce": lambda count: 2 * (count - 1) / count,
    "all-gather": lambda count: (count - 1) / count,
    "reduce-scatter": lambda count: count - 1,
    "all-to-all": lambda count: (count - 1) / count,
    "collective-permute": lambda count: 1,
}


def compiled_bytes(text: str) -> float:
    """Of all collectives in the text of a compiled program; none may stand in a loop or be asynchronous."""
    module = parse_module(text)
    operations = [operation for computation in module.computations.values() for operation in computation.operations]
    assert not any(operation.opcode.endswith("-start") for operation in operations)
    in_loops = [name for operation in operations if operation.opcode == "while" for name in operation.calls]
    for name in in_loops:
        inner = module.computations[name].operations
        assert not any(operation.opcode in _SENT for operation in inner)
        in_loops += [called for operation in inner for called in operation.calls if called not in in_loops]
    return sum(
        operation.result_bytes * _SENT[operation.opcode](_group_size(operation.attributes))
        for operation in operations
        if operation.opcode in _SENT
    )


def _group_size(attributes: str) -> int:
    """The number of devices that take part together; every pair of a permutation counts as one."""
    if "source_target_pairs" in attributes:
        return 1
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes)
    if mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", mesh[2]))
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]<=", attributes)
    if iota:
        return int(iota[1])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    assert listed, attributes
    return len(listed[1].split(","))
