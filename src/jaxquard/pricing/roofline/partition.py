"""Decides how each equation is sharded, from the shardings of its inputs and the one that its result is held to.

On each mesh axis an equation takes the partition that moves the fewest bytes: of inputs that must be resharded, of sums
that must be added up, and of results that are wanted otherwise. Work that every device repeats counts as bytes too, by
what the links could have moved meanwhile.
"""

import math
from dataclasses import dataclass

from jaxquard.pricing.roofline.equation_partitions import SCATTER_ADDS, EquationPartition
from jaxquard.pricing.roofline.prepare import EquationWork, WorkKind
from jaxquard.pricing.roofline.value_dims import Dims

# Of the time in which links move an array, the part in which memory passes over it.
_MEMORY_TO_LINKS = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPartition:
    """The sharding of an equation.

    Attributes:
        in_dims: of each input, as the equation reads it.
        out_dims: of each output, as it is computed.
        summed: the axes over which the outputs are still parts of sums.
        letters: for each axis, the dim of a product that is sharded; "" for none.
        num_parts: over how many devices the work is shared.
    """

    in_dims: tuple[Dims, ...]
    out_dims: tuple[Dims, ...]
    summed: tuple[int, ...]
    letters: tuple[str, ...]
    num_parts: int


class Partitioner:
    """Chooses partitions of equations on a mesh; each combination of shardings is decided once."""

    def __init__(self, sizes: tuple[int, ...], *, bytes_per_flop: float) -> None:
        self._sizes = sizes
        self._bytes_per_flop = bytes_per_flop
        self._known: dict[tuple[EquationWork, tuple[Dims, ...], Dims | None], ChosenPartition] = {}

    def choose(self, work: EquationWork, held: tuple[Dims, ...], wanted: Dims | None) -> ChosenPartition:
        """Returns the sharding of an equation.

        Args:
            held: of its inputs.
            wanted: of its first output; None where it is free.
        """
        key = work, held, wanted
        found = self._known.get(key)
        if found is None:
            is_local = work.body is not None and work.body.is_local
            if work.follows_inputs or is_local or not work.output_bytes:
                found = self._follow(work, held, wanted)
            else:
                found = self._choose(work, held, wanted)
            self._known[key] = found
        return found

    def _follow(self, equation: EquationWork, held: tuple[Dims, ...], wanted: Dims | None) -> ChosenPartition:
        """Returns the sharding of a copy, or of a body that has its shards as it wants them."""
        whole = (None,) * len(self._sizes)
        others = (whole if wanted is None else wanted,) * len(equation.output_bytes)
        return ChosenPartition(
            in_dims=held,
            out_dims=held if equation.follows_inputs else others,
            summed=(),
            letters=("",) * len(self._sizes),
            num_parts=math.prod(self._sizes),
        )

    def _choose(self, equation: EquationWork, held: tuple[Dims, ...], wanted: Dims | None) -> ChosenPartition:
        used: dict[EquationPartition, int] = {}
        chosen: list[EquationPartition | None] = []
        for axis, size in enumerate(self._sizes):
            fitting = [
                partition
                for partition in equation.partitions
                if partition.num_chunks % (size * used.get(partition, 1)) == 0
                and _is_considered(equation, partition, axis, held, wanted)
            ]
            found = self._cheapest(equation, fitting, axis, held, wanted)
            if found is not None:
                used[found] = used.get(found, 1) * size
            chosen.append(found)
        return self._combine(equation, chosen)

    def _cheapest(
        self,
        equation: EquationWork,
        fitting: list[EquationPartition],
        axis: int,
        held: tuple[Dims, ...],
        wanted: Dims | None,
    ) -> EquationPartition | None:
        """Returns the partition that moves the fewest bytes; None where every device computes the whole.

        XLA partitions a product wherever it can, and takes a sum before anything else; so it does where it adds sharded
        updates into a whole array, as into the gradient of a table.
        """
        options: list[EquationPartition | None] = [*fitting]
        is_whole = wanted is None or wanted[axis] is None
        sums = [one for one in fitting if one.is_summed and held[-1][axis] == one.in_dims[-1]]
        if equation.kind is WorkKind.PRODUCT and fitting:
            options = [partition for partition in fitting if partition.is_summed] or options
        elif equation.name in SCATTER_ADDS and sums and is_whole:
            options = [*sums]
        else:
            options.append(None)
        costs = [self._moved_bytes(equation, option, axis, held, wanted) for option in options]
        return options[costs.index(min(costs))]

    def _combine(self, equation: EquationWork, chosen: list[EquationPartition | None]) -> ChosenPartition:
        pairs = list(zip(chosen, self._sizes, strict=True))
        return ChosenPartition(
            in_dims=tuple(
                tuple(None if found is None else found.in_dims[place] for found in chosen)
                for place in range(len(equation.input_bytes))
            ),
            out_dims=tuple(
                tuple(None if found is None else found.out_dims[place] for found in chosen)
                for place in range(len(equation.output_bytes))
            ),
            summed=tuple(axis for axis, (found, size) in enumerate(pairs) if found and found.is_summed and size > 1),
            letters=tuple("" if found is None else found.letter for found in chosen),
            num_parts=math.prod(size for found, size in pairs if found is not None),
        )

    def _moved_bytes(
        self,
        equation: EquationWork,
        partition: EquationPartition | None,
        axis: int,
        held: tuple[Dims, ...],
        wanted: Dims | None,
    ) -> float:
        count, total = self._sizes[axis], 0.0
        for place, size in enumerate(equation.input_bytes):
            if size is not None:
                needed = None if partition is None else partition.in_dims[place]
                total += size * _share(held[place][axis], needed, count)
        out_bytes = equation.output_bytes[0]
        computed = None if partition is None else partition.out_dims[0]
        target = computed if wanted is None else wanted[axis]
        if partition is not None and partition.is_summed:
            total += out_bytes * (count - 1) / count * (1 if wanted is not None and target is not None else 2)
        else:
            total += out_bytes * _share(computed, target, count)
        if partition is None:
            total += self._work_bytes(equation) * (count - 1) / count
        return total

    def _work_bytes(self, equation: EquationWork) -> float:
        """Returns the bytes that links move in the time of the equation."""
        if equation.kind is WorkKind.PRODUCT and equation.sizes is not None:
            return equation.sizes.flops * self._bytes_per_flop
        if equation.body is not None:
            return equation.body.flops * self._bytes_per_flop
        sizes = [size for size in (*equation.input_bytes, *equation.output_bytes) if size is not None]
        return _MEMORY_TO_LINKS * max(sizes)


def _is_considered(
    equation: EquationWork, partition: EquationPartition, axis: int, held: tuple[Dims, ...], wanted: Dims | None
) -> bool:
    """Returns true for a partition that XLA's partitioner considers.

    An equation is sharded as its result is wanted, or as one of its inputs is. A product takes the dim along which its
    result is wanted, or a sum if both operands have its shards already; else it gathers both, and every device computes
    the whole.
    """
    matches = [
        of_input[axis] == dim
        for size, of_input, dim in zip(equation.input_bytes, held, partition.in_dims, strict=True)
        if size is not None and dim is not None
    ]
    if equation.kind is WorkKind.PRODUCT and partition.is_summed:
        return all(matches)
    is_wanted = wanted is not None and not partition.is_summed and wanted[axis] == partition.out_dims[0]
    if equation.kind is WorkKind.PRODUCT and wanted is not None:
        return is_wanted
    return is_wanted or any(matches)


def _share(before: int | None, after: int | None, count: int) -> float:
    """Returns the part of a whole array that a device receives in a reshard over one axis."""
    if before == after or before is None:
        return 0.0
    return (count - 1) / count if after is None else (count - 1) / count**2
