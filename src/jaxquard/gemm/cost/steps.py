"""The steps of an algorithm: transfers before a loop, the loop, transfers after it (MeshSlice, section 4.2).

The closed forms of `cost.py` and the simulation of `play.py` both start from here. One chip stands for all: in every
algorithm but SUMMA and Cannon's skew the chips do the same at the same time, and there the slowest is described.

    algorithm   before           an iteration loads / stores               iterations
    meshslice                    partial all-gathers / reduce-scatters     the slices
    collective                   the same                                  1
    wang        other direction  shards from the neighbour                 the ring, unrolled
    summa                        broadcasts / reductions                   a multiple of both sides, unrolled
    cannon      skew             shards from both neighbours               the side
    1d_tp, fsdp                  as wang, on a mesh of one row or column
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from jaxquard.cluster import Axis, Cluster, chip_speeds, product_memory_bytes
from jaxquard.cluster.times.product import (
    ACCUMULATOR_BYTES,
    SIXTEEN_BITS,
    arithmetic_s,
    sliced_product_s,
    sum_slowdown,
    whole_product_s,
)
from jaxquard.cluster.times.ring import ring_size
from jaxquard.gemm.algorithms.products.sized_product import MeshShape, MovingMatrix, SizedProduct
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.algorithms.slicing.split_work import SplitWork, split_work
from jaxquard.gemm.cost.ring_transfers import (
    RingTransfer,
    broadcast_minimum_s,
    broadcast_transfer,
    collective_transfer,
    permutes_transfer,
    share_port,
    shift_transfer,
)
from jaxquard.gemm.problem import AlgorithmOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """One product on one chip.

    Attributes:
        before: phases one after another, the transfers of a phase at once.
        loads: transfers that bring the inputs of an iteration, all at once; `first_loads` those of the first.
        stores: transfers that take the outputs of an iteration away; `last_stores` those of the last.
        waits: transfers of an iteration that nothing hides, one after another; the last iteration has none.
        is_ring: the first iteration finds its inputs in place, and the last leaves its outputs there.
        compute_s: of one iteration.
        memory_bytes: the bytes that one iteration's product reads and writes.
        buffer_bytes: the bytes that transfers and the accumulator need besides the shards.
    """

    num_iterations: int
    compute_s: float
    memory_bytes: float
    buffer_bytes: float
    before: tuple[tuple[RingTransfer, ...], ...] = ()
    first_loads: tuple[RingTransfer, ...] = ()
    loads: tuple[RingTransfer, ...] = ()
    stores: tuple[RingTransfer, ...] = ()
    last_stores: tuple[RingTransfer, ...] = ()
    after: tuple[tuple[RingTransfer, ...], ...] = ()
    waits: tuple[RingTransfer, ...] = ()
    is_ring: bool = False

    @property
    def wait_s(self) -> float:
        """The seconds of an iteration in which the chip does nothing but wait for transfers."""
        return sum(transfer.time_s for transfer in self.waits)

    def loads_of(self, iteration: int) -> tuple[RingTransfer, ...]:
        """Returns the transfers that bring the inputs of an iteration."""
        if iteration > 0:
            return self.loads
        return () if self.is_ring else self.first_loads

    def stores_of(self, iteration: int) -> tuple[RingTransfer, ...]:
        """Returns the transfers that take the outputs of an iteration away."""
        if iteration < self.num_iterations - 1:
            return self.stores
        return () if self.is_ring else self.last_stores


def meshslice_steps(cluster: Cluster, product: SizedProduct, mesh: MeshShape, options: AlgorithmOptions) -> Steps:
    """Returns the steps of Figure 5: in each iteration a slice of both moving matrices.

    Where a product hides one collective only, the others are waited for.
    """
    num_slices = options.slices or 1
    if options.split_for_overlap and num_slices > 1:
        return _split_steps(cluster, product, mesh, options)
    inputs, outputs = _split(
        product, lambda moving: collective_transfer(cluster, product, moving, mesh_shape=mesh, num_slices=num_slices)
    )
    extra_s = 0.0
    if num_slices > 1:
        copies = 2 * sum(product.shard_bytes(moving, mesh) for moving in product.moving) / num_slices
        extra_s = cluster.compute.slice_copy_exposed * copies / cluster.memory.bandwidth_bytes_per_s
    compute_s = _compute_s(cluster, product, mesh, num_slices) + extra_s
    steps = _pipeline(cluster, product, mesh, num_slices, inputs, outputs, compute_s=compute_s)
    return _with_waits(steps) if cluster.network.hides_one_collective else steps


def _split_steps(cluster: Cluster, product: SizedProduct, mesh: MeshShape, options: AlgorithmOptions) -> Steps:
    """Returns the steps of MeshSlice where each slice's product is split, one transfer beside each part of it.

    An output goes round its ring as permutes, each beside one product, so one after another; `split_work` has the
    products and the bytes, which are those of what runs.
    """
    num_slices, work = options.slices or 1, split_work(product, mesh, options)

    def transfer(moving: MovingMatrix) -> tuple[RingTransfer, ...]:
        if moving.is_output:
            count, size = work.num_permutes, work.permute_bytes
            return permutes_transfer(cluster, moving, mesh_shape=mesh, num_permutes=count, size_bytes=size)
        return collective_transfer(cluster, product, moving, mesh_shape=mesh, num_slices=num_slices)

    compute_s = _split_compute_s(cluster, product, work)
    inputs, outputs = _split(product, transfer)
    return _pipeline(cluster, product, mesh, num_slices, inputs, outputs, compute_s=compute_s)


def _split_compute_s(cluster: Cluster, product: SizedProduct, work: SplitWork) -> float:
    """Returns the seconds of one slice on a chip: its products with the sums that they read, and its copies."""
    compute, bandwidth = cluster.compute, cluster.memory.bandwidth_bytes_per_s
    item_bytes = ACCUMULATOR_BYTES if product.accumulates else product.item_bytes
    time_s = compute.slice_copy_exposed * work.copied_bytes / bandwidth
    for part in work.products:
        moved_bytes = item_bytes * part.m * part.n * (2 if part.reads_sum else 1)
        product_s = arithmetic_s(chip_speeds(cluster), part.m, part.k, part.n, 1, SIXTEEN_BITS)
        if item_bytes == ACCUMULATOR_BYTES:
            product_s *= sum_slowdown(compute, m=part.m, n=part.n)
        time_s += part.count * (product_s + compute.output_exposed * moved_bytes / bandwidth + compute.launch_s)
    return time_s


def _with_waits(steps: Steps) -> Steps:
    """Returns steps of which a product hides one all-gather, the shorter one, and no reduce-scatter."""
    gathers = sorted(steps.loads, key=lambda transfer: transfer.time_s)
    return replace(steps, loads=tuple(gathers[:1]), waits=(*gathers[1:], *steps.stores), stores=())


def collective_steps(cluster: Cluster, product: SizedProduct, mesh: MeshShape, options: AlgorithmOptions) -> Steps:
    """Returns the steps of Figure 2b: MeshSlice with one slice."""
    return meshslice_steps(cluster, product, mesh, replace(options, slices=1))


def summa_steps(cluster: Cluster, product: SizedProduct, mesh: MeshShape, options: AlgorithmOptions) -> Steps:
    """Returns the steps of Figure 2a: broadcasts of parts, unrolled to at most `options.slices` iterations."""
    num_parts = math.lcm(*mesh)
    iterations = _unrolled(num_parts, options)
    inputs, outputs = _split(
        product,
        lambda moving: broadcast_transfer(
            cluster,
            product,
            moving,
            mesh_shape=mesh,
            num_parts=num_parts,
            group=num_parts // iterations,
            num_packets=options.num_packets,
        ),
    )
    compute_s = _compute_s(cluster, product, mesh, iterations)
    return _pipeline(cluster, product, mesh, iterations, inputs, outputs, compute_s=compute_s)


def wang_steps(cluster: Cluster, product: SizedProduct, mesh: MeshShape, options: AlgorithmOptions) -> Steps:
    """Returns a collective in one direction and permutes round a ring in the other.

    The ring is unrolled to at most `options.slices` iterations. The first iteration multiplies the shards of its group,
    so that all but the chip's own must come first.
    """
    ring = options.ring or product.longer_ring(mesh)
    (moving,) = (moving for moving in product.moving if moving.axis is ring)
    (other,) = (moving for moving in product.moving if moving.axis is not ring)
    iterations = _unrolled(ring_size(ring, mesh), options)
    group = ring_size(ring, mesh) // iterations
    whole = collective_transfer(cluster, product, other, mesh_shape=mesh, num_slices=1)
    start, shift = (
        shift_transfer(cluster, product, moving, mesh_shape=mesh, num_steps=steps, bidirectional=options.bidirectional)
        for steps in (group - 1, group)
    )
    before = (() if other.is_output else (whole,)) + (() if moving.is_output else (start,))
    after = ((start,) if moving.is_output else ()) + ((whole,) if other.is_output else ())
    buffers = product.gathered_bytes(other, mesh) + 2 * group * product.shard_bytes(moving, mesh)
    return Steps(
        num_iterations=iterations,
        before=tuple(phase for phase in before if phase),
        loads=() if moving.is_output else shift,
        stores=shift if moving.is_output else (),
        after=tuple(phase for phase in after if phase),
        is_ring=True,
        compute_s=_compute_s(cluster, product, mesh, iterations),
        memory_bytes=_memory_bytes(cluster, product, mesh, iterations),
        buffer_bytes=buffers + _accumulator_bytes(product, mesh, iterations),
    )


def one_row_steps(cluster: Cluster, product: SizedProduct, mesh: MeshShape, options: AlgorithmOptions) -> Steps:
    """Returns the steps of 1D tensor parallelism: Wang's, on the columns of a mesh of one row."""
    return wang_steps(cluster, product, mesh, replace(options, ring=Axis.COLUMNS))


def one_column_steps(cluster: Cluster, product: SizedProduct, mesh: MeshShape, options: AlgorithmOptions) -> Steps:
    """Returns the steps of fully sharded data parallelism: Wang's, on the rows of a mesh of one column."""
    return wang_steps(cluster, product, mesh, replace(options, ring=Axis.ROWS))


def cannon_steps(cluster: Cluster, product: SizedProduct, mesh: MeshShape, options: AlgorithmOptions) -> Steps:
    """Returns the steps of section 2.3.2: shards are skewed, then shift in both directions; there are no options.

    The farthest shard is skewed by half the ring, from neighbour to neighbour. Outputs are brought back after the loop,
    as inputs are skewed before it. Each shard moves one way at a time.
    """
    side = mesh[0]
    inputs, outputs = _split(
        product, lambda moving: shift_transfer(cluster, product, moving, mesh_shape=mesh, num_steps=1)
    )
    skew_in, skew_out = _split(
        product, lambda moving: shift_transfer(cluster, product, moving, mesh_shape=mesh, num_steps=side // 2)
    )
    shifts = share_port(cluster, inputs + outputs, mesh)
    shards = sum(product.shard_bytes(moving, mesh) for moving in product.moving)
    return Steps(
        num_iterations=side,
        before=(share_port(cluster, skew_in, mesh),) if skew_in else (),
        loads=shifts[: len(inputs)],
        stores=shifts[len(inputs) :],
        after=(skew_out,) if skew_out else (),
        is_ring=True,
        compute_s=_compute_s(cluster, product, mesh, side),
        memory_bytes=_memory_bytes(cluster, product, mesh, side),
        buffer_bytes=2 * shards + _accumulator_bytes(product, mesh, side),
    )


def minimum_time_s(cluster: Cluster, product: SizedProduct, *, algorithm: str, mesh_shape: MeshShape) -> float:
    """Returns the seconds below which no options of an algorithm can come; 0 where that takes as long as to price them.

    SUMMA streams every part of a matrix over its ring, from neighbour to neighbour.
    """
    if algorithm != "summa":
        return 0.0
    return max(broadcast_minimum_s(cluster, moving, mesh_shape=mesh_shape) for moving in product.moving)


STEPS: Mapping[str, Callable[[Cluster, SizedProduct, MeshShape, AlgorithmOptions], Steps]] = {
    "meshslice": meshslice_steps,
    "collective": collective_steps,
    "wang": wang_steps,
    "summa": summa_steps,
    "cannon": cannon_steps,
    "1d_tp": one_row_steps,
    "fsdp": one_column_steps,
}
"""The steps of each algorithm, by its name in `ALGORITHMS`."""


def product_steps(
    cluster: Cluster, product: SizedProduct, *, algorithm: str, mesh_shape: MeshShape, options: AlgorithmOptions
) -> Steps:
    """Returns the steps of a product by an algorithm; where `options.slices` are iterations, there are at most so many.

    Raises:
        GemmError: if there is no such algorithm.
    """
    return STEPS[find_algorithm(algorithm).name](cluster, product, mesh_shape, options)


def _unrolled(number: int, options: AlgorithmOptions) -> int:
    """Returns the largest divisor of a number that is at most the iterations asked for; left out, the number itself."""
    limit = min(number, options.slices or number)
    return next(divisor for divisor in range(limit, 0, -1) if number % divisor == 0)


def _split(
    product: SizedProduct, make: Callable[[MovingMatrix], tuple[RingTransfer, ...]]
) -> tuple[tuple[RingTransfer, ...], tuple[RingTransfer, ...]]:
    """Returns the transfers of the inputs and those of the outputs."""
    inputs = tuple(one for moving in product.moving if not moving.is_output for one in make(moving))
    outputs = tuple(one for moving in product.moving if moving.is_output for one in make(moving))
    return inputs, outputs


def _pipeline(
    cluster: Cluster,
    product: SizedProduct,
    mesh: MeshShape,
    iterations: int,
    inputs: tuple[RingTransfer, ...],
    outputs: tuple[RingTransfer, ...],
    *,
    compute_s: float,
) -> Steps:
    """Returns a loop in which every iteration loads all its inputs and stores all its outputs, double-buffered.

    Args:
        compute_s: of an iteration.
    """
    together = share_port(cluster, inputs + outputs, mesh)
    buffers = sum(product.gathered_bytes(moving, mesh) for moving in product.moving) / iterations
    return Steps(
        num_iterations=iterations,
        first_loads=share_port(cluster, inputs, mesh),
        loads=together[: len(inputs)],
        stores=together[len(inputs) :],
        last_stores=outputs,
        compute_s=compute_s,
        memory_bytes=_memory_bytes(cluster, product, mesh, iterations),
        buffer_bytes=buffers * min(2, iterations) + _accumulator_bytes(product, mesh, iterations),
    )


def _compute_s(cluster: Cluster, product: SizedProduct, mesh: MeshShape, iterations: int) -> float:
    """Returns the seconds of one iteration; what the first and the last do otherwise is spread over all."""
    chip = chip_speeds(cluster)
    if product.accumulates:
        m, k, n = product.local_shape(mesh)
        return sliced_product_s(chip, m, k, n, iterations, product.item_bytes) / iterations
    m, k, n = product.slice_shape(mesh, iterations)
    return whole_product_s(chip, m, k, n, 1, SIXTEEN_BITS, product.item_bytes)


def _memory_bytes(cluster: Cluster, product: SizedProduct, mesh: MeshShape, iterations: int) -> float:
    m, k, n = product.slice_shape(mesh, iterations)
    accumulates = product.accumulates and iterations > 1
    return product_memory_bytes(cluster.compute, m=m, k=k, n=n, item_bytes=product.item_bytes, accumulates=accumulates)


def _accumulator_bytes(product: SizedProduct, mesh: MeshShape, iterations: int) -> float:
    if not product.accumulates or iterations == 1:
        return 0.0
    return ACCUMULATOR_BYTES * product.m * product.n / (mesh[0] * mesh[1])
