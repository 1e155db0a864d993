"""The moves of a mesh as hops from neighbour to neighbour, chip by chip.

Each chip has its links along the rows and its links along the columns; a hop keeps those of the sender busy. Of the
moves along either a chip makes one after another: it has sent and received all of one before it launches the next. A
move is launched once, or anew before every hop where each is an operation of its own.
Marks are, for each chip, the jobs that something of it waits for. There are three kinds of move:

- Around a ring: a chip hands on what it got in the hop before, so a hop waits for the chip's own last one and for the
  neighbour's.
- Cannon's skew: the same, but row i goes i places, by the shorter way, and row 0 none. Likewise for columns.
- SUMMA's broadcasts: a packet goes on from chip to chip after the root. A reduction begins at the chip after the root
  and ends at the root.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxquard.cluster import Axis
from jaxquard.cluster.times.ring import ring_size
from jaxquard.gemm.cost.ring_transfers import RingTransfer
from jaxquard.ir.timeline import Track
from jaxquard.simulate import Job

Marks = list[tuple[int, ...]]


@dataclass(slots=True, kw_only=True)
class ChipMoves:
    """The jobs of all chips of a mesh; `made` are the marks of the last move along each axis."""

    shape: tuple[int, int]
    jobs: list[Job] = field(default_factory=list)
    made: dict[Axis, Marks] = field(default_factory=dict)

    @property
    def chips(self) -> range:
        return range(self.shape[0] * self.shape[1])

    def add_products(self, time_s: float, after: Marks) -> Marks:
        """One product on every chip."""
        return [
            (self._add(Job(name="product", resource="compute", chip=chip, time_s=time_s, after=after[chip])),)
            for chip in self.chips
        ]

    def add_ring(self, move: RingTransfer, after: Marks) -> Marks:
        """Every chip hands on, as often as the move has steps."""
        return self.add_hops(move, after, [move.num_steps] * len(self.chips))

    def add_skew(self, move: RingTransfer, after: Marks, places: Callable[[int], int]) -> Marks:
        """The rows, or the columns, go so many places along the move's axis; `places` is of the number of the row."""
        size = ring_size(move.axis, self.shape)
        hops = []
        for chip in self.chips:
            row, column = divmod(chip, self.shape[1])
            there = places(row if move.axis is Axis.COLUMNS else column) % size
            hops.append(min(there, size - there))
        assert max(hops) <= move.num_steps, "the price has the farthest shard"
        return self.add_hops(move, after, hops)

    def add_hops(self, move: RingTransfer, after: Marks, hops: Sequence[int]) -> Marks:
        """The `hops` of each chip, with their launches; all chips of a ring have as many."""
        marks = self._after_last(move, after)
        for step in range(max(hops)):
            sending = [chip for chip in self.chips if step < hops[chip]]
            if step < move.num_launches:
                for chip in sending:
                    marks[chip] = self._launch(move, chip, marks[chip])
            sent = {chip: self._send(move, chip, _step_s(move), marks[chip]) for chip in sending}
            for chip in sending:
                marks[chip] = (sent[chip], sent[self._source(chip, move.axis)])
        self.made[move.axis] = marks
        return marks

    def add_broadcasts(
        self, move: RingTransfer, after: Marks, *, roots: Sequence[int], num_packets: int, is_reduction: bool
    ) -> Marks:
        """A broadcast from each of the roots, which are numbers of chips in their ring.

        Launched is all of them, each of them, or each hop.
        """
        marks = self._after_last(move, after)
        for number, root in enumerate(roots):
            if number < move.num_launches <= len(roots):
                marks = [self._launch(move, chip, mark) for chip, mark in enumerate(marks)]
            marks = self._add_broadcast(
                move, marks, root + is_reduction, num_packets, launches_hops=move.num_launches > len(roots)
            )
        self.made[move.axis] = marks
        return marks

    def _add_broadcast(
        self, move: RingTransfer, after: Marks, first: int, num_packets: int, *, launches_hops: bool
    ) -> Marks:
        """Packets go from the first chip of each ring past all others; the last one sends nothing."""
        size = ring_size(move.axis, self.shape)
        sent: Marks = [()] * len(self.chips)
        marks = list(after)
        distances = {chip: (self._place(chip, move.axis) - first) % size for chip in self.chips}
        for chip in sorted(self.chips, key=lambda chip: distances[chip]):
            got = sent[self._source(chip, move.axis)] if distances[chip] else ()
            if distances[chip] < size - 1:
                for packet in range(num_packets):
                    ready = (*after[chip], *got[packet : packet + 1])
                    if launches_hops:
                        ready = self._launch(move, chip, ready)
                    sent[chip] += (self._send(move, chip, _step_s(move), ready),)
            marks[chip] = (*after[chip], *got, *sent[chip])
        return marks

    def _after_last(self, move: RingTransfer, after: Marks) -> Marks:
        """Returns the jobs that a move waits for: its inputs, and the last move along its axis."""
        return join(after, self.made[move.axis]) if move.axis in self.made else list(after)

    def _launch(self, move: RingTransfer, chip: int, after: tuple[int, ...]) -> tuple[int, ...]:
        return (self._send(move, chip, move.time.launch_s / move.num_launches, after),)

    def _send(self, move: RingTransfer, chip: int, time_s: float, after: tuple[int, ...]) -> int:
        name, resource = f"{move.kind.value} {move.name}", move.axis.value
        return self._add(Job(name=name, resource=resource, chip=chip, time_s=time_s, after=after, track=Track.TRANSFER))

    def _add(self, job: Job) -> int:
        self.jobs.append(job)
        return len(self.jobs) - 1

    def _place(self, chip: int, axis: Axis) -> int:
        """Returns the number of a chip in its ring."""
        return chip // self.shape[1] if axis is Axis.ROWS else chip % self.shape[1]

    def _source(self, chip: int, axis: Axis) -> int:
        """Returns the chip that a chip receives from."""
        row, column = divmod(chip, self.shape[1])
        if axis is Axis.ROWS:
            return (row - 1) % self.shape[0] * self.shape[1] + column
        return row * self.shape[1] + (column - 1) % self.shape[1]


def join(*marks: Marks) -> Marks:
    """Joins marks: something that waits for all of them."""
    return [tuple(job for mark in chip_marks for job in mark) for chip_marks in zip(*marks, strict=True)]


def _step_s(move: RingTransfer) -> float:
    return (move.time.sync_s + move.time.transfer_s) / move.num_steps
