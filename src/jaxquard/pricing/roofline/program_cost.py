"""The cost of a sharded program: the seconds of its kernels and collectives, and the layout of every value.

The shardings of inputs, of the values that are held to one and of outputs are given; equations between follow
(`partition`). A value that is needed in another sharding is resharded once for all uses that want the same. A sum of
which all users take slices is a reduce-scatter, and what was never sharded is computed as its users want it
(`follow_users`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.cluster.speeds import GroupCollective
from jaxquard.pricing.roofline.follow_users import follow_users
from jaxquard.pricing.roofline.fuse import FusedKernel
from jaxquard.pricing.roofline.partition import ChosenPartition, Partitioner
from jaxquard.pricing.roofline.prepare import NO_VALUE, PreparedEquation, PreparedJaxpr
from jaxquard.pricing.roofline.value_dims import AxisCollective, Dims, num_shards, reshard_collectives


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """The seconds of a kernel, with the positions of its equations."""

    positions: tuple[int, ...]
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """The seconds of a collective.

    Attributes:
        position: of the equation that needs it: of a sum, the one that computes it; the number of equations for one
            that an output needs.
        value: the number of the value that moves.
        is_sum: whether it adds up the parts of a sum.
    """

    position: int
    value: int
    collective: AxisCollective
    is_sum: bool
    time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramCost:
    """The cost of a program on one device.

    Attributes:
        dims: for each value, its sharding as it is computed.
        sizes_bytes: of each value on one device.
        fused: the kernels with what they read and write, one for each of `kernels`.
        flops: of the products of one device.
        peak_bytes: arguments, temporaries and outputs, less what outputs share with arguments.
    """

    prepared: PreparedJaxpr = field(repr=False)
    dims: tuple[Dims, ...] = field(repr=False)
    sizes_bytes: tuple[int, ...] = field(repr=False)
    fused: tuple[FusedKernel, ...] = field(repr=False)
    kernels: tuple[KernelCost, ...] = field(repr=False)
    collectives: tuple[CollectiveCost, ...] = field(repr=False)
    flops: float
    peak_bytes: int

    @property
    def compute_s(self) -> float:
        """The seconds of all kernels."""
        return math.fsum(kernel.time_s for kernel in self.kernels)

    @property
    def communication_s(self) -> float:
        """The seconds of all collectives."""
        return math.fsum(found.time_s for found in self.collectives)


class ShardingWalk:
    """Follows the shardings of a program through its equations, and lists what moves.

    Attributes:
        dims: of each value.
        chosen: of each equation.
        collectives: in order, without their times.
    """

    def __init__(self, prepared: PreparedJaxpr, partitioner: Partitioner, sizes: tuple[int, ...]) -> None:
        self.prepared = prepared
        self._partitioner = partitioner
        self._sizes = sizes
        self._whole: Dims = (None,) * len(sizes)
        self.dims: list[Dims] = [self._whole] * len(prepared.sizes_bytes)
        self.chosen: list[ChosenPartition] = []
        self.collectives: list[CollectiveCost] = []
        # For each value that is added up over axes, the shardings in which it is used.
        self._needs: dict[int, set[Dims]] = {}
        self._moved: set[tuple[int, Dims]] = set()
        # Values that some user takes slices of.
        self._sliced: set[int] = set()

    def walk(
        self,
        in_dims: Sequence[Dims],
        constraints: Iterable[tuple[int, int, Dims]],
        out_dims: Sequence[Dims | None],
    ) -> None:
        """Follows all equations, from the shardings of inputs to those of outputs.

        Args:
            constraints: equation, output and sharding of the values that are held to one.
        """
        prepared = self.prepared
        for number, dims in zip(prepared.inputs, in_dims, strict=True):
            self.dims[number] = dims
        # Outputs that are held to nothing else are held to their own shardings.
        pairs = zip(prepared.outputs, out_dims, strict=True)
        wanted = {number: dims for number, dims in pairs if dims is not None and number != NO_VALUE}
        for position, output, dims in constraints:
            wanted[prepared.equations[position].outputs[output]] = dims
        for position, equation in enumerate(prepared.equations):
            self._visit(position, equation, wanted)
        end = len(prepared.equations)
        for number, dims in zip(prepared.outputs, out_dims, strict=True):
            if number != NO_VALUE:
                self._need(end, number, self.dims[number] if dims is None else dims)
        self.collectives = [self._scattered(found) for found in self.collectives]
        if self._sliced:
            follow_users(
                prepared,
                self.dims,
                self.chosen,
                sizes=self._sizes,
                sliced=self._sliced,
                held=wanted.keys() | self._needs.keys() | set(prepared.outputs),
            )

    def local_sizes(self) -> list[int]:
        """Returns the bytes of each value on one device."""
        shards = {dims: num_shards(dims, self._sizes) for dims in set(self.dims)}
        return [-(-size // shards[dims]) for size, dims in zip(self.prepared.sizes_bytes, self.dims, strict=True)]

    def _visit(self, position: int, equation: PreparedEquation, wanted: Mapping[int, Dims]) -> None:
        dims, whole, inputs, outputs = self.dims, self._whole, equation.inputs, equation.outputs
        held = tuple([whole if number == NO_VALUE else dims[number] for number in inputs])
        first = wanted.get(outputs[0]) if outputs else None
        chosen = self._partitioner.choose(equation.work, held, first)
        self.chosen.append(chosen)
        for number, has, needs in zip(inputs, held, chosen.in_dims, strict=True):
            if number != NO_VALUE and (needs != has or number in self._needs):
                self._need(position, number, needs)
        for number, computed in zip(outputs, chosen.out_dims, strict=True):
            final = wanted.get(number)
            if final is None and not chosen.summed:
                dims[number] = computed
            else:
                self._hold(position, number, computed, chosen.summed, final)

    def _need(self, position: int, number: int, dims: Dims) -> None:
        """Reshards a value for a use, unless another use wanted the same."""
        if number in self._needs:
            self._needs[number].add(dims)
        if dims != self.dims[number] and (number, dims) not in self._moved:
            self._moved.add((number, dims))
            if not self._reshard(position, number, self.dims[number], dims):
                self._sliced.add(number)

    def _hold(self, position: int, number: int, computed: Dims, summed: tuple[int, ...], wanted: Dims | None) -> None:
        """Adds up a result, and reshards it as it is held."""
        final = computed if wanted is None else wanted
        self.dims[number] = final
        if not summed and final == computed:
            return
        size = self.prepared.sizes_bytes[number]
        scattered = tuple(axis for axis in summed if final[axis] is not None)
        reduced = tuple(axis for axis in summed if final[axis] is None)
        reached = tuple(final[axis] if axis in scattered else dim for axis, dim in enumerate(computed))
        if scattered:
            before = size / num_shards(computed, self._sizes)
            self._add(position, number, GroupCollective.REDUCE_SCATTER, scattered, before)
        if reduced:
            self._needs.setdefault(number, set())
            self._add(position, number, GroupCollective.ALL_REDUCE, reduced, size / num_shards(reached, self._sizes))
        self._reshard(position, number, reached, final)

    def _add(self, position: int, number: int, kind: GroupCollective, axes: tuple[int, ...], size_bytes: float) -> None:
        collective = AxisCollective(kind=kind, axes=axes, size_bytes=size_bytes)
        self.collectives.append(CollectiveCost(position=position, value=number, collective=collective, is_sum=True))

    def _reshard(self, position: int, number: int, before: Dims, after: Dims) -> bool:
        """Lists the collectives of a reshard; returns false if nothing moves."""
        size = self.prepared.sizes_bytes[number]
        collectives = reshard_collectives(size, before, after, self._sizes)
        for collective in collectives:
            self.collectives.append(
                CollectiveCost(position=position, value=number, collective=collective, is_sum=False)
            )
        return bool(collectives)

    def _scattered(self, found: CollectiveCost) -> CollectiveCost:
        """Returns the sum as a reduce-scatter if all users take slices of it."""
        needs = self._needs.get(found.value)
        axes = found.collective.axes
        if found.collective.kind is not GroupCollective.ALL_REDUCE or not needs:
            return found
        if any(dims[axis] is None for dims in needs for axis in axes):
            return found
        return replace(found, collective=replace(found.collective, kind=GroupCollective.REDUCE_SCATTER))


def gathered_bytes(collectives: Sequence[CollectiveCost]) -> dict[int, float]:
    """Returns the bytes that each equation has gathered for itself, by its position."""
    found: dict[int, float] = {}
    for one in collectives:
        if one.collective.kind is GroupCollective.ALL_GATHER:
            found[one.position] = found.get(one.position, 0.0) + one.collective.size_bytes
    return found


def peak_live_bytes(
    prepared: PreparedJaxpr,
    kernels: Sequence[FusedKernel],
    sizes_bytes: Sequence[int],
    *,
    ends: Sequence[Sequence[int]],
    gathered: Mapping[int, float],
    shared_bytes: int = 0,
) -> int:
    """Returns the peak of the memory of a device.

    Args:
        sizes_bytes: of each value on the device.
        ends: for each kernel, the values that are not needed after it (`fuse.find_ends`).
        gathered: of each equation, what it has gathered for itself.
        shared_bytes: of outputs that reuse the memory of arguments.
    """
    arguments = sum(sizes_bytes[number] for number in prepared.inputs)
    live = peak = 0
    for kernel, ended in zip(kernels, ends, strict=True):
        for number in kernel.written:
            live += sizes_bytes[number]
        added = round(sum([gathered.get(position, 0.0) for position in kernel.positions])) if gathered else 0
        peak = max(peak, live + added)
        for number in ended:
            live -= sizes_bytes[number]
    return arguments + max(0, peak - shared_bytes)
