"""Reads the collectives out of a compiled program, and says what each algorithm must send by its closed formula."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.gemm.variants import Variant

# (kind, direction) -> number of operations, and bytes that a chip sends on the average.
Traffic = dict[tuple[str, str], tuple[int, float]]

_COLLECTIVE = re.compile(
    r"^ +(?:ROOT )?%\S+ = (.+?) (all-gather|reduce-scatter|all-reduce|all-to-all|collective-permute)\((.*)",
    re.MULTILINE,
)
_BYTES = {"bf16": 2, "f32": 4, "f64": 8, "s32": 4, "u32": 4, "pred": 1}


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One operation; `groups` are those of the devices that take part, or pairs of source and destination."""

    kind: str
    result_bytes: tuple[int, ...]
    groups: list[list[int]]


def list_collectives(text: str) -> list[Collective]:
    """The collectives of a compiled program; combined ones have several results."""
    assert "-start(" not in text, "this reader knows synchronous collectives only"
    found = []
    for results, kind, rest in _COLLECTIVE.findall(text):
        sizes = tuple(
            math.prod(int(size) for size in shape.split(",") if size) * _BYTES[dtype]
            for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", results)
        )
        found.append(Collective(kind=kind, result_bytes=sizes, groups=_groups(rest)))
    return found


def traffic(text: str, mesh_shape: tuple[int, int]) -> Traffic:
    """The transfers of a compiled program."""
    num_chips = math.prod(mesh_shape)
    total: dict[tuple[str, str], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for collective in list_collectives(text):
        kind, size, groups = collective.kind, sum(collective.result_bytes), collective.groups
        if kind == "collective-permute":
            groups = [pair for pair in groups if pair[0] != pair[1]]
            sent = size * len(groups) / num_chips
        else:
            chips = len(groups[0])
            sent = {"all-gather": (chips - 1) / chips, "reduce-scatter": chips - 1, "all-reduce": 0}[kind] * size
        key = kind, direction(groups, mesh_shape[1])
        count, before = total[key]
        total[key] = count + 1, before + sent
    return dict(total)


def _groups(rest: str) -> list[list[int]]:
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}", rest)
    if listed:
        return [[int(number) for number in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])]
    named = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", rest)
    if named:
        sizes = {axis: int(size) for axis, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        inner = [list(sizes).index(axis) for axis in re.findall(r"'(\w+)'", named[2])]
        numbers = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
        numbers = np.moveaxis(numbers, inner, range(-len(inner), 0))
        return numbers.reshape(-1, math.prod(numbers.shape[-len(inner) :])).tolist()
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    assert iota, rest
    shape, dims = ([int(size) for size in iota[i].split(",")] for i in (1, 2))
    numbers = np.arange(math.prod(dims)).reshape(dims)
    if iota[3]:
        numbers = numbers.transpose([int(axis) for axis in iota[3].split(",")])
    return numbers.reshape(shape).tolist()


def direction(groups: list[list[int]], num_columns: int) -> str:
    """Along which direction of the mesh the devices of each group lie."""
    places = [[divmod(device, num_columns) for device in group] for group in groups]
    if all(len({row for row, _ in group}) == 1 for group in places):
        return "columns"
    return "rows" if all(len({column for _, column in group}) == 1 for group in places) else "both"


def expected_traffic(
    variant: Variant,
    dataflow: str,
    *,
    sizes: Mapping[str, int],
    mesh_shape: tuple[int, int],
    is_transposed: bool = False,
    item_bytes: int = 4,
) -> Traffic:
    """By the closed formulas: in a ring of p chips, p - 1 times the shard of the matrix that moves there.

    Cannon skews too: row i of the mesh by i places, the shorter way round.
    """
    num_chips = math.prod(mesh_shape)
    directions = {"rows": mesh_shape[0], "columns": mesh_shape[1]}
    if variant.algorithm in ("1d_tp", "fsdp"):
        directions = (
            {"rows": num_chips, "columns": 1} if variant.algorithm == "fsdp" else {"rows": 1, "columns": num_chips}
        )
    if is_transposed:
        directions = {"rows": directions["columns"], "columns": directions["rows"]}
    along_columns, along_rows = {"os": ("MK", "KN"), "ls": ("MN", "KN"), "rs": ("MK", "MN")}[dataflow]
    moves = {"columns": along_columns, "rows": along_rows}
    shards = {way: sizes[name[0]] * sizes[name[1]] * item_bytes / num_chips for way, name in moves.items()}
    swap = {"rows": "columns", "columns": "rows"} if is_transposed else {"rows": "rows", "columns": "columns"}
    ring = _wang_ring(variant, directions, shards, swap)
    expected: Traffic = {}
    for way, chips in directions.items():
        if chips == 1:
            continue
        kind, count, sent = _moves(variant, moves[way] == "MN", directions, way, ring)
        is_one_ring = variant.algorithm in ("1d_tp", "fsdp")
        expected[kind, _whole_mesh(mesh_shape) if is_one_ring else swap[way]] = count, sent * shards[way]
    return expected


def _whole_mesh(mesh_shape: tuple[int, int]) -> str:
    """The direction of a ring of all chips."""
    return "both" if min(mesh_shape) > 1 else "rows" if mesh_shape[1] == 1 else "columns"


def _wang_ring(variant: Variant, directions: dict[str, int], shards: dict[str, float], swap: dict[str, str]) -> str:
    asked: Any = variant.options.get("ring")
    if asked:
        return swap[asked]
    sent = {way: (chips - 1) * shards[way] for way, chips in directions.items()}
    return "columns" if sent["columns"] >= sent["rows"] else "rows"


def _moves(variant: Variant, is_sum: bool, directions: dict[str, int], way: str, ring: str) -> tuple[str, int, float]:
    """Kind and number of collectives along a direction, and the number of shards that a chip sends."""
    chips, options = directions[way], variant.options
    whole = "reduce-scatter" if is_sum else "all-gather"
    match variant.algorithm:
        case "meshslice" if is_sum and options.get("split_for_overlap"):
            return "collective-permute", 2 * (chips - 1) * options["slices"], chips - 1
        case "meshslice" | "collective":
            return whole, options.get("slices", 1), chips - 1
        case "wang" | "1d_tp" | "fsdp":
            shifts = (chips - 1) * (1 + options.get("bidirectional", False))
            return ("collective-permute", shifts, chips - 1) if way == ring else (whole, 1, chips - 1)
        case "summa":
            parts = math.lcm(*directions.values(), options.get("slices", 1))
            return "collective-permute", parts * (chips + options.get("num_packets", 1) - 2), chips - 1
        case "cannon":
            skews = [min(number, chips - number) for number in range(chips)]
            return "collective-permute", max(skews) + chips - 1, sum(skews) / chips + chips - 1
    raise AssertionError(variant)
