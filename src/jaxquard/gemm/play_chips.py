"""Plays every chip of a small mesh, hop by hop, to check that one chip may stand for all.

A collective is its steps: in each a chip sends what it got in the step before from its neighbour, so a step waits for
the chip's own last step and for the neighbour's. A chip goes on when it has sent and received all.
"""

from dataclasses import dataclass, field

from jaxquard.cluster import Axis, Cluster
from jaxquard.errors import GemmError
from jaxquard.ir.timeline import Timeline, Track
from jaxquard.simulate import Job, play_jobs

from .cost_algorithms import product_steps
from .cost_moves import Move
from .cost_product import SizedProduct
from .cost_steps import Steps

Marks = list[tuple[int, ...]]
_RINGS = ("meshslice", "collective", "wang", "1d_tp", "fsdp")


def play_every_chip(
    cluster: Cluster, product: SizedProduct, *, algorithm: str, mesh_shape: tuple[int, int], num_slices: int = 1
) -> Timeline:
    """The timeline of all chips during one product, memory contention off.

    Raises:
        GemmError: the chips of the algorithm do not all do the same (SUMMA, Cannon).
    """
    if algorithm not in _RINGS:
        raise GemmError(
            f"every chip is played for {', '.join(_RINGS)}, whose moves are rings; {algorithm} has others. "
            "Use `play_product`."
        )
    steps = product_steps(cluster, product, algorithm=algorithm, mesh_shape=mesh_shape, num_slices=num_slices)
    mesh = _Mesh(shape=mesh_shape)
    mesh.add_steps(steps)
    return play_jobs(mesh.jobs)


@dataclass(slots=True, kw_only=True)
class _Mesh:
    """The jobs of all chips; marks are, for each chip, the jobs that something of it waits for."""

    shape: tuple[int, int]
    jobs: list[Job] = field(default_factory=list)

    @property
    def num_chips(self) -> int:
        return self.shape[0] * self.shape[1]

    def add_steps(self, steps: Steps) -> None:
        marks: Marks = [()] * self.num_chips
        for phase in steps.before:
            marks = _join(*(self.add_move(move, marks) for move in phase))
        start, products, stored = marks, [], []
        for iteration in range(steps.num_iterations):
            buffer = products[iteration - 2] if iteration >= 2 else start
            loaded = [self.add_move(move, buffer) for move in steps.loads_of(iteration)]
            room = stored[iteration - 2] if iteration >= 2 else start
            products.append(self.add_product(steps.compute_s, _join(*loaded, room, *products[-1:])))
            sent = [self.add_move(move, products[-1]) for move in steps.stores_of(iteration)]
            stored.append(_join(products[-1], *sent))
        marks = _join(*stored[-2:])
        for phase in steps.after:
            marks = _join(*(self.add_move(move, marks) for move in phase))

    def add_product(self, time_s: float, after: Marks) -> Marks:
        marks: Marks = []
        for chip in range(self.num_chips):
            self.jobs.append(Job(name="product", resource="compute", chip=chip, time_s=time_s, after=after[chip]))
            marks.append((len(self.jobs) - 1,))
        return marks

    def add_move(self, move: Move, after: Marks) -> Marks:
        """A launch and then the steps of a ring."""
        marks: Marks = [(self.add_send(move, chip, move.time.launch_s, after[chip]),) for chip in range(self.num_chips)]
        count = round(move.num_steps)
        step_s = (move.time.sync_s + move.time.transfer_s) / count
        for _ in range(count):
            sent = [self.add_send(move, chip, step_s, marks[chip]) for chip in range(self.num_chips)]
            marks = [(sent[chip], sent[self.neighbour(chip, move.axis)]) for chip in range(self.num_chips)]
        return marks

    def add_send(self, move: Move, chip: int, time_s: float, after: tuple[int, ...]) -> int:
        name, resource = f"{move.kind.value} {move.name}", move.axis.value
        self.jobs.append(Job(name=name, resource=resource, chip=chip, time_s=time_s, after=after, track=Track.TRANSFER))
        return len(self.jobs) - 1

    def neighbour(self, chip: int, axis: Axis) -> int:
        """From whom a chip receives."""
        row, column = divmod(chip, self.shape[1])
        if axis is Axis.ROWS:
            return (row - 1) % self.shape[0] * self.shape[1] + column
        return row * self.shape[1] + (column - 1) % self.shape[1]


def _join(*marks: Marks) -> Marks:
    return [tuple(job for mark in chip_marks for job in mark) for chip_marks in zip(*marks, strict=True)]
