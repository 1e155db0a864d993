"""The bytes that an assignment communicates, by symbolic rules, and the assignment that communicates the fewest.

This is what Alpa minimises (CFP, section 2.2), over blocks instead of single operators. Bytes are those that each
device sends in one step. On meshes of several axes, the axes that sum or gather a value do it as one, and a value that
other axes shard counts by its shards; the topology of the mesh is left out. Where one axis changes from one dim to
another and another axis gathers, they count one after the other.

The bytes that each device sends in a collective follow the symbolic rules of Alpa (its `LogicalDeviceMesh`):

    all-reduce          2 (p - 1) / p of the array
    all-gather          (p - 1) / p of the whole array
    reduce-scatter      (p - 1) / p of the whole array
    all-to-all          (p - 1) / p^2 of the whole array: a device keeps one p-th of its own p-th

An array is counted whole over the devices of one mesh axis, as is usual. Alpa multiplies all-to-all by p / 2, since it
found it slow; that is no volume, and is left out here, and so are Alpa's constants that break ties.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.shardings.communication import (
    AS_IT_COMES,
    AllReduce,
    Communication,
    Reshard,
    all_choices,
    find_communication,
)
from jaxquard.intraop.shardings.layouts import Assignment
from jaxquard.intraop.shardings.volume_program import ChoiceProblem, solve_choices


def all_reduce_bytes(size_bytes: float, num_devices: int) -> float:
    """Returns the bytes of a sum that all devices get."""
    return 2 * all_gather_bytes(size_bytes, num_devices)


def all_gather_bytes(size_bytes: float, num_devices: int) -> float:
    """Returns the bytes of gathering a sharded array; the same for a sum that ends sharded (reduce-scatter)."""
    return size_bytes * (num_devices - 1) / num_devices


def all_to_all_bytes(size_bytes: float, num_devices: int) -> float:
    """Returns the bytes of moving a sharding from one dim of an array to another."""
    return size_bytes * (num_devices - 1) / num_devices**2


# A choice of a block on every axis, by their places in `all_choices`.
_Places = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """The bytes that an assignment communicates.

    Attributes:
        blocks: of all-reduces, and of reshards inside a block, by block.
        reshards: between two blocks, the holder of a value first.
    """

    blocks: Mapping[int, float] = field(repr=False)
    reshards: Mapping[tuple[int, int], float] = field(repr=False)

    @property
    def size_bytes(self) -> float:
        return sum(self.blocks.values()) + sum(self.reshards.values())


def volume(analysis: Analysis, assignment: Assignment) -> Volume:
    """Returns the bytes that each device sends under an assignment."""
    candidates = [[tuple(assignment[block.number])] for block in analysis.blocks]
    problem = volume_problem(analysis, candidates)
    return Volume(
        blocks={number: float(costs[0]) for number, costs in enumerate(problem.costs)},
        reshards={pair: float(costs[0, 0]) for pair, costs in problem.edges.items()},
    )


def solve_volume(analysis: Analysis, *, batch_axis: str | None = None) -> dict[int, tuple[str, ...]]:
    """Returns the assignment that communicates the fewest bytes.

    Args:
        batch_axis: this axis always shards rows, where a block has any that it divides.
    """
    candidates = [block_choices(block, analysis.axes, batch_axis=batch_axis) for block in analysis.blocks]
    chosen = solve_choices(volume_problem(analysis, candidates))
    return {number: names[choice] for number, (names, choice) in enumerate(zip(candidates, chosen, strict=True))}


def volume_problem(analysis: Analysis, candidates: Sequence[Sequence[tuple[str, ...]]]) -> ChoiceProblem:
    """Returns the bytes of every candidate of every block, and of pairs of them.

    Args:
        candidates: per block, choices by their names on every axis.
    """
    places = [
        tuple(tuple(_place(analysis, number, name) for name in names) for names in of_block)
        for number, of_block in enumerate(candidates)
    ]
    return _Pricer(tuple(analysis.axes.values()), places).price(find_communication(analysis))


def _place(analysis: Analysis, number: int, name: str) -> int:
    return [choice.name for choice in all_choices(analysis.blocks[number])].index(name)


class _Pricer:
    """Fills the tables; equal all-reduces and reshards, as of equal layers, are computed once."""

    def __init__(self, axes: tuple[int, ...], places: Sequence[tuple[_Places, ...]]):
        self.axes = axes
        self.places = places
        self.known: dict[object, np.ndarray] = {}

    def price(self, communication: Communication) -> ChoiceProblem:
        costs = [np.zeros(len(of_block)) for of_block in self.places]
        edges: dict[tuple[int, int], np.ndarray] = {}
        for found in communication.all_reduces:
            costs[found.block] += self._all_reduce_table(found)
        for reshard in communication.reshards:
            table = self._reshard_table(reshard)
            if reshard.holder == reshard.consumer:
                costs[reshard.consumer] += np.diagonal(table)
            elif table.any():
                pair = reshard.holder, reshard.consumer
                edges[pair] = edges.get(pair, 0.0) + table
        return ChoiceProblem(costs=tuple(costs), edges=edges)

    def _all_reduce_table(self, found: AllReduce) -> np.ndarray:
        of_block = self.places[found.block]
        key = found.size_bytes, found.dims, found.is_summed, of_block
        if key not in self.known:
            self.known[key] = np.array([self._all_reduce_bytes(found, places) for places in of_block])
        return self.known[key]

    def _all_reduce_bytes(self, found: AllReduce, places: _Places) -> float:
        summing = [found.is_summed[place] for place in places]
        sharding = [
            found.dims[place] is not None and not is_summed for place, is_summed in zip(places, summing, strict=True)
        ]
        return all_reduce_bytes(found.size_bytes / self._devices(sharding), self._devices(summing))

    def _reshard_table(self, reshard: Reshard) -> np.ndarray:
        held, wanted = self.places[reshard.holder], self.places[reshard.consumer]
        sums = reshard.is_summed_by_holder, reshard.is_summed, reshard.has_gradient
        key = reshard.size_bytes, reshard.held, reshard.wanted, sums, held, wanted
        if key not in self.known:
            self.known[key] = np.array(
                [[self._reshard_bytes(reshard, left, right) for right in wanted] for left in held]
            )
        return self.known[key]

    def _reshard_bytes(self, reshard: Reshard, left: _Places, right: _Places) -> float:
        """Returns the bytes of a reshard from the holder's layout to the consumer's, and of the gradient back."""
        held = [reshard.held[place] for place in left]
        wishes = [reshard.wanted[place] for place in right]
        wanted = [dim if wish == AS_IT_COMES else wish for dim, wish in zip(held, wishes, strict=True)]
        total = self._resharding_bytes(reshard.size_bytes, held, wanted)
        if not reshard.has_gradient:
            return total
        total += self._resharding_bytes(reshard.size_bytes, wanted, held)
        summing = [
            reshard.is_summed[b] and not (held[axis] == wanted[axis] and reshard.is_summed_by_holder[a])
            for axis, (a, b) in enumerate(zip(left, right, strict=True))
        ]
        sharding = [dim is not None for dim in wanted]
        return total + all_reduce_bytes(reshard.size_bytes / self._devices(sharding), self._devices(summing))

    def _resharding_bytes(self, size_bytes: int, held: Sequence[int | None], wanted: Sequence[int | None]) -> float:
        """Returns the bytes of one reshard: axes that exchange dims do so first, while the others still shard it."""
        pairs = list(zip(held, wanted, strict=True))
        gathering = [a is not None and b is None for a, b in pairs]
        exchanging = [a is not None and b is not None and a != b for a, b in pairs]
        kept = self._devices([a is not None and a == b for a, b in pairs])
        gathered, exchanged = self._devices(gathering), self._devices(exchanging)
        total = all_to_all_bytes(size_bytes / (kept * gathered), exchanged)
        return total + all_gather_bytes(size_bytes / (kept * exchanged), gathered)

    def _devices(self, is_part: Sequence[bool]) -> int:
        """Returns the number of devices of some axes together."""
        return math.prod(size for size, is_in in zip(self.axes, is_part, strict=True) if is_in)
