"""Plays every chip of a small mesh, hop by hop, to check that one chip may stand for all.

The loop is that of `play.py`, on every chip; `play_chip_moves.py` makes the moves. What comes of it, against one chip:

    meshslice, collective, wang, 1D   all chips do the same at the same time: equal
    cannon                            chips of row and column 0 have no skew and wait for others: equal in the end
    summa                             a chip goes on to the next broadcast when it is done with one, and need not wait
                                      for the end of the ring: never slower, and equal on rings of two chips
"""

import math

from jaxquard.cluster import Cluster
from jaxquard.cluster.times.ring import ring_size
from jaxquard.gemm.algorithms.products.sized_product import SizedProduct
from jaxquard.gemm.cost.ring_transfers import RingTransfer
from jaxquard.gemm.cost.steps import Steps, product_steps
from jaxquard.gemm.problem import AlgorithmOptions
from jaxquard.ir.timeline import Timeline
from jaxquard.simulate import play_jobs
from tests.gemm.cost.play_chip_moves import ChipMoves, Marks, join


def play_every_chip(
    cluster: Cluster,
    product: SizedProduct,
    *,
    algorithm: str,
    mesh_shape: tuple[int, int],
    options: AlgorithmOptions,
) -> Timeline:
    """The timeline of all chips during one product, memory contention off."""
    steps = product_steps(cluster, product, algorithm=algorithm, mesh_shape=mesh_shape, options=options)
    moves = {"cannon": _CannonMoves, "summa": _SummaMoves}.get(algorithm, _RingMoves)
    chips = ChipMoves(shape=mesh_shape)
    _add_steps(chips, steps, moves(chips, steps, options))
    return play_jobs(chips.jobs)


class _RingMoves:
    """The moves of an algorithm from chip to chip: all of them around rings."""

    def __init__(self, chips: ChipMoves, steps: Steps, options: AlgorithmOptions) -> None:
        self.chips, self.steps, self.num_packets = chips, steps, options.num_packets

    def before(self, move: RingTransfer, after: Marks) -> Marks:
        return self.chips.add_ring(move, after)

    def load(self, move: RingTransfer, after: Marks, iteration: int) -> Marks:
        return self.chips.add_ring(move, after)

    def store(self, move: RingTransfer, after: Marks, iteration: int) -> Marks:
        return self.chips.add_ring(move, after)

    def after(self, move: RingTransfer, after: Marks) -> Marks:
        return self.chips.add_ring(move, after)


class _CannonMoves(_RingMoves):
    """Inputs are skewed before the loop; outputs, which it leaves one place further, are brought back after it."""

    def before(self, move: RingTransfer, after: Marks) -> Marks:
        return self.chips.add_skew(move, after, lambda row: row)

    def after(self, move: RingTransfer, after: Marks) -> Marks:
        return self.chips.add_skew(move, after, lambda row: 1 - row)


class _SummaMoves(_RingMoves):
    """An iteration broadcasts or reduces the parts of its group, each from or to the chip that holds it."""

    def load(self, move: RingTransfer, after: Marks, iteration: int) -> Marks:
        return self._broadcasts(move, after, iteration, is_reduction=False)

    def store(self, move: RingTransfer, after: Marks, iteration: int) -> Marks:
        return self._broadcasts(move, after, iteration, is_reduction=True)

    def _broadcasts(self, move: RingTransfer, after: Marks, iteration: int, *, is_reduction: bool) -> Marks:
        num_parts = math.lcm(*self.chips.shape)
        group = num_parts // self.steps.num_iterations
        per_chip = num_parts // ring_size(move.axis, self.chips.shape)
        roots = [part // per_chip for part in range(iteration * group, (iteration + 1) * group)]
        return self.chips.add_broadcasts(
            move, after, roots=roots, num_packets=self.num_packets, is_reduction=is_reduction
        )


def _add_steps(chips: ChipMoves, steps: Steps, moves: _RingMoves) -> None:
    marks: Marks = [()] * len(chips.chips)
    for phase in steps.before:
        marks = join(*(moves.before(move, marks) for move in phase))
    start, products, stored = marks, [], []
    for iteration in range(steps.num_iterations):
        buffer = products[iteration - 2] if iteration >= 2 else start
        loaded = [moves.load(move, buffer, iteration) for move in steps.loads_of(iteration)]
        room = stored[iteration - 2] if iteration >= 2 else start
        products.append(chips.add_products(steps.compute_s, join(*loaded, room, *products[-1:])))
        sent = [moves.store(move, products[-1], iteration) for move in steps.stores_of(iteration)]
        stored.append(join(products[-1], *sent))
    marks = join(*stored[-2:])
    for phase in steps.after:
        marks = join(*(moves.after(move, marks) for move in phase))
