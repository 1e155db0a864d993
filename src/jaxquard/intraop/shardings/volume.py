"""The bytes that communication moves under an assignment, by symbolic rules, and the assignment that moves the fewest.

This is what Alpa minimises (CFP, section 2.2), over the blocks instead of single operators. Bytes are those that each
device sends in one step. On meshes of several axes those that sum or gather a value do it as one, and what other axes
cut is counted by its parts; how a value moves inside the mesh is not looked at. Where an axis changes from one dim to
another and another axis gathers, they are counted one after the other.

How many bytes each device sends in a collective, by the symbolic rules of Alpa (its `LogicalDeviceMesh`).

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
    Communication,
    Move,
    Sum,
    all_choices,
    find_communication,
)
from jaxquard.intraop.shardings.layouts import Assignment
from jaxquard.intraop.shardings.volume_program import ChoiceProblem, solve_choices


def all_reduce_bytes(size_bytes: float, num_devices: int) -> float:
    """Of a sum that all devices get."""
    return 2 * all_gather_bytes(size_bytes, num_devices)


def all_gather_bytes(size_bytes: float, num_devices: int) -> float:
    """Of an array that was cut; the same for a sum that ends cut (reduce-scatter)."""
    return size_bytes * (num_devices - 1) / num_devices


def all_to_all_bytes(size_bytes: float, num_devices: int) -> float:
    """Of an array that is cut along one dim, and then along another."""
    return size_bytes * (num_devices - 1) / num_devices**2


# A choice of a block on every axis, by their places in `all_choices`.
_Places = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What an assignment moves, by what it moves.

    Attributes:
        blocks: sums, and changes of layout inside, by block.
        moves: between two blocks, the holder of a value first.
    """

    blocks: Mapping[int, float] = field(repr=False)
    moves: Mapping[tuple[int, int], float] = field(repr=False)

    @property
    def size_bytes(self) -> float:
        return sum(self.blocks.values()) + sum(self.moves.values())


def volume(analysis: Analysis, assignment: Assignment) -> Volume:
    """The bytes that each device sends under an assignment."""
    candidates = [[tuple(assignment[block.number])] for block in analysis.blocks]
    problem = volume_problem(analysis, candidates)
    return Volume(
        blocks={number: float(costs[0]) for number, costs in enumerate(problem.costs)},
        moves={pair: float(costs[0, 0]) for pair, costs in problem.edges.items()},
    )


def solve_volume(analysis: Analysis, *, batch_axis: str | None = None) -> dict[int, tuple[str, ...]]:
    """The assignment that moves the fewest bytes.

    Args:
        batch_axis: this axis always cuts rows, where a block has any that it divides.
    """
    candidates = [block_choices(block, analysis.axes, batch_axis=batch_axis) for block in analysis.blocks]
    chosen = solve_choices(volume_problem(analysis, candidates))
    return {number: names[choice] for number, (names, choice) in enumerate(zip(candidates, chosen, strict=True))}


def volume_problem(analysis: Analysis, candidates: Sequence[Sequence[tuple[str, ...]]]) -> ChoiceProblem:
    """The bytes of every candidate of every block, and of pairs of them.

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
    """Fills the tables; equal sums and moves, as of equal layers, are computed once."""

    def __init__(self, axes: tuple[int, ...], places: Sequence[tuple[_Places, ...]]):
        self.axes = axes
        self.places = places
        self.known: dict[object, np.ndarray] = {}

    def price(self, communication: Communication) -> ChoiceProblem:
        costs = [np.zeros(len(of_block)) for of_block in self.places]
        edges: dict[tuple[int, int], np.ndarray] = {}
        for found in communication.sums:
            costs[found.block] += self._sum_table(found)
        for move in communication.moves:
            table = self._move_table(move)
            if move.holder == move.taker:
                costs[move.taker] += np.diagonal(table)
            elif table.any():
                pair = move.holder, move.taker
                edges[pair] = edges.get(pair, 0.0) + table
        return ChoiceProblem(costs=tuple(costs), edges=edges)

    def _sum_table(self, found: Sum) -> np.ndarray:
        of_block = self.places[found.block]
        key = found.size_bytes, found.dims, found.is_summed, of_block
        if key not in self.known:
            self.known[key] = np.array([self._sum_bytes(found, places) for places in of_block])
        return self.known[key]

    def _sum_bytes(self, found: Sum, places: _Places) -> float:
        summing = [found.is_summed[place] for place in places]
        cutting = [
            found.dims[place] is not None and not is_summed for place, is_summed in zip(places, summing, strict=True)
        ]
        return all_reduce_bytes(found.size_bytes / self._devices(cutting), self._devices(summing))

    def _move_table(self, move: Move) -> np.ndarray:
        held, wanted = self.places[move.holder], self.places[move.taker]
        sums = move.is_summed_by_holder, move.is_summed, move.has_gradient
        key = move.size_bytes, move.held, move.wanted, sums, held, wanted
        if key not in self.known:
            self.known[key] = np.array([[self._move_bytes(move, left, right) for right in wanted] for left in held])
        return self.known[key]

    def _move_bytes(self, move: Move, left: _Places, right: _Places) -> float:
        """Forward from the holder's layout to the taker's, and the gradient back."""
        held = [move.held[place] for place in left]
        wishes = [move.wanted[place] for place in right]
        wanted = [dim if wish == AS_IT_COMES else wish for dim, wish in zip(held, wishes, strict=True)]
        total = self._reshard_bytes(move.size_bytes, held, wanted)
        if not move.has_gradient:
            return total
        total += self._reshard_bytes(move.size_bytes, wanted, held)
        summing = [
            move.is_summed[b] and not (held[axis] == wanted[axis] and move.is_summed_by_holder[a])
            for axis, (a, b) in enumerate(zip(left, right, strict=True))
        ]
        cutting = [dim is not None for dim in wanted]
        return total + all_reduce_bytes(move.size_bytes / self._devices(cutting), self._devices(summing))

    def _reshard_bytes(self, size_bytes: int, held: Sequence[int | None], wanted: Sequence[int | None]) -> float:
        """Axes that exchange dims do so first, while the others still cut; axes that gather do so together."""
        pairs = list(zip(held, wanted, strict=True))
        gathering = [a is not None and b is None for a, b in pairs]
        exchanging = [a is not None and b is not None and a != b for a, b in pairs]
        kept = self._devices([a is not None and a == b for a, b in pairs])
        gathered, exchanged = self._devices(gathering), self._devices(exchanging)
        total = all_to_all_bytes(size_bytes / (kept * gathered), exchanged)
        return total + all_gather_bytes(size_bytes / (kept * exchanged), gathered)

    def _devices(self, is_part: Sequence[bool]) -> int:
        """The devices of some axes together."""
        return math.prod(size for size, is_in in zip(self.axes, is_part, strict=True) if is_in)
