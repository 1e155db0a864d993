"""The groups of devices that take part in a collective, in every spelling that XLA prints.

    {{0,1},{2,3}}                                  lists
    {}                                             all devices
    [2,4]<=[8]                                     2 groups of 4, numbered in order
    [4,2]<=[2,4]T(1,0)                             the same after a transposition of [2,4]
    mesh[x=2,y=4] {y}                              along axes of a mesh; also '@mesh<x=2,y=4> {y}', and names in quotes
    mesh[x=4,y=2], device_ids=([2,4]T(1,0)) {x}    of a mesh whose devices are in another order
    mesh[x=8] {x:(2)4}                             along a part of an axis: its size after the 2 parts before it
    source_target_pairs={{0,1},{1,0}}              of a permute

Numbers are of logical devices: the positions in the mesh that the program was lowered for.
"""

import itertools
import math
import re
from collections.abc import Sequence

from jaxquard.errors import HloError
from jaxquard.hlo.module import Module, Operation

Groups = tuple[tuple[int, ...], ...]
_GROUPS = re.compile(r"\breplica_groups=")
_PAIRS = re.compile(r"\bsource_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_LISTS = re.compile(r"\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"@?mesh[\[<]([^\]>]*)[\]>]"
    r"(?:,\s*device_ids=\((.*?)\)(?=\s*\{)|\(devices=\[[\d,]*\](?:<=)?([^{}]*)\))?\s*\{([^}]*)\}"
)
_AXIS = re.compile(r"'?([\w.-]+)'?=(\d+)")
_PART = re.compile(r"'?([\w.-]+)'?(?::\((\d+)\)(\d+))?")
# Of these, groups without `use_global_device_ids` are of replicas, with all partitions of each.
_OF_REPLICAS = ("all-reduce", "all-gather", "reduce-scatter")


def replica_groups(operation: Operation, module: Module) -> Groups:
    """Returns the groups of devices that a collective joins; those of a permute are its pairs of source and target.

    Raises:
        HloError: if the groups are written in another way; it quotes them.
    """
    pairs = _PAIRS.search(operation.attributes)
    if pairs:
        return tuple((int(source), int(target)) for source, target in re.findall(r"(\d+),(\d+)", pairs[1]))
    found = _GROUPS.search(operation.attributes)
    if found is None:
        return (tuple(range(module.num_devices)),)
    groups = _read_groups(operation.attributes[found.end() :], operation)
    is_global = "use_global_device_ids=true" in operation.attributes
    return _as_devices(operation, groups, module, is_global=is_global)


def _read_groups(text: str, operation: Operation) -> Groups:
    lists, iota, mesh = _LISTS.match(text), _IOTA.match(text), _MESH.match(text)
    if lists:
        groups = (_numbers(group) for group in re.findall(r"\{([\d,]*)\}", lists[1]))
        return tuple(filter(None, groups))
    try:
        if iota:
            num_groups, size = _numbers(iota[1])
            devices = _transposed(_numbers(iota[2]), _numbers(iota[3]) if iota[3] else None)
            assert num_groups * size == len(devices)
            return tuple(tuple(devices[first * size : (first + 1) * size]) for first in range(num_groups))
        if mesh:
            return _along_axes(mesh)
    except (ValueError, KeyError, AssertionError):
        pass
    raise HloError(
        f"expected replica groups such as {{{{0,1}},{{2,3}}}} or [2,4]<=[8] in the operation {operation.name}, but "
        f"found: replica_groups={text[:200]}"
    )


def _along_axes(mesh: re.Match[str]) -> Groups:
    """Returns the groups along some axes of a mesh, each axis or part of it split off its mesh."""
    sizes = {name: int(size) for name, size in _AXIS.findall(mesh[1])}
    wanted: dict[str, list[tuple[int, int]]] = {}
    for name, before, size in _PART.findall(mesh[4]):
        wanted.setdefault(name, []).append((int(before or 1), int(size or sizes[name])))
    assert wanted.keys() <= sizes.keys()
    dims: list[int] = []
    joined: list[int] = []
    for name, whole in sizes.items():
        done = 1
        for before, size in sorted(wanted.get(name, [])):
            joined.append(len(dims) + 1)
            dims += [before // done, size]
            done = before * size
        dims.append(whole // done)
    devices = _device_order(mesh[2] or mesh[3], math.prod(sizes.values()))
    assert math.prod(dims) == len(devices)
    others = [dim for dim in range(len(dims)) if dim not in joined]
    order = _transposed(dims, [*others, *joined])
    size = math.prod(dims[dim] for dim in joined)
    return tuple(tuple(devices[place] for place in order[first : first + size]) for first in range(0, len(order), size))


def _device_order(text: str | None, num_devices: int) -> Sequence[int]:
    """Reads the devices of a mesh: `[4,16]T(1,0)`, `8,3,7`, or none for those in order."""
    if not text:
        return range(num_devices)
    iota = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    return _transposed(_numbers(iota[1]), _numbers(iota[2]) if iota[2] else None) if iota else _numbers(text)


def _transposed(dims: Sequence[int], order: Sequence[int] | None) -> list[int]:
    """Returns the numbers of an array of these dims, in order, after its dims are transposed."""
    order = range(len(dims)) if order is None else order
    assert sorted(order) == list(range(len(dims)))
    strides = [math.prod(dims[dim + 1 :]) for dim in range(len(dims))]
    places = itertools.product(*(range(dims[dim]) for dim in order))
    return [sum(place * strides[dim] for place, dim in zip(found, order, strict=True)) for found in places]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def _as_devices(operation: Operation, groups: Groups, module: Module, *, is_global: bool) -> Groups:
    """Returns groups of devices: partition p of replica r is r * partitions + p."""
    partitions, replicas = range(module.num_partitions), range(module.num_replicas)
    is_across_partitions = operation.attribute("channel_id") is not None
    is_one_replica = module.num_replicas == 1 and groups != ((0,),)
    if is_global or is_one_replica or module.num_partitions == 1:
        return groups or (tuple(range(module.num_devices)),)

    def device(replica: int, partition: int) -> int:
        return replica * module.num_partitions + partition

    if is_across_partitions and operation.opcode.startswith(_OF_REPLICAS):
        groups = groups or (tuple(replicas),)
        return tuple(tuple(device(replica, one) for replica in group for one in partitions) for group in groups)
    if is_across_partitions:
        groups = groups or (tuple(partitions),)
        return tuple(tuple(device(replica, one) for one in group) for replica in replicas for group in groups)
    groups = groups or (tuple(replicas),)
    return tuple(tuple(device(replica, one) for replica in group) for one in partitions for group in groups)
