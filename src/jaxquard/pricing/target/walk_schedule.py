"""Walks a scheduled program on one chip: seconds, what overlaps what, a timeline.

A chip starts operations in the order of the schedule, one after the other. Beside it, transfers go on:

    collectives    on links: one waits until all links that it needs are free; while the chip waits for one, in a
                   collective without a start or in a done, communication is exposed
    copies         between memories, one after the other at the memory's bandwidth; the traffic of operations comes
                   first, and holds copies back

A loop is walked twice: its first iteration, and one that finds the transfers of the one before; the others take as long
as that one. Of a branch the body that takes longest counts.
"""

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from jaxquard.hlo import CollectiveWork, OperationKind, ScheduledOperation
from jaxquard.ir.timeline import Span, Timeline, Track


class OperationCosts(Protocol):
    """The seconds of operations on some hardware."""

    def compute_s(self, operation: ScheduledOperation) -> float:
        """Returns the seconds of an operation of the chip."""
        ...

    def memory_s(self, size_bytes: float) -> float:
        """Returns the seconds in which the memory moves so many bytes."""
        ...

    def collective_s(self, work: CollectiveWork) -> float:
        """Returns the seconds of a collective."""
        ...

    def links(self, work: CollectiveWork) -> frozenset[Hashable]:
        """Returns the links that a collective needs alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedCollective:
    """A collective of the program.

    Attributes:
        name: of the operation.
        group_size: how many devices take part together; 2 for a permute.
        time_s: of one run.
        exposed_s: in which the chip waited for it, in all runs together.
        times: the number of its runs.
        source: the place in the user's program, JAX's `op_name`.

    Example:
        >>> gather = jq.pricing.WalkedCollective(
        ...     name="all-gather.1",
        ...     opcode="all-gather",
        ...     size_bytes=2**20,
        ...     group_size=8,
        ...     time_s=1e-4,
        ...     exposed_s=2e-4,
        ...     times=4,
        ...     source="",
        ... )
        >>> f"{gather.exposed_s / (gather.times * gather.time_s):.0%} exposed"
        '50% exposed'
    """

    name: str
    opcode: str
    size_bytes: int
    group_size: int
    time_s: float
    exposed_s: float
    times: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedProgram:
    """A program as it would run on one chip.

    Attributes:
        time_s: of the whole program.
        communication_s: the part of it in which the chip waited for a collective.
        stalled_s: the part in which it waited for copies between memories.
        flops: of its matrix products.
        collectives: in the order in which they first ran.
        timeline: of loops, the first two iterations and one span for the others.

    Example:
        >>> from jaxquard.ir.timeline import Timeline
        >>> walked = jq.pricing.WalkedProgram(
        ...     time_s=2e-3,
        ...     communication_s=5e-4,
        ...     stalled_s=0.0,
        ...     flops=1e12,
        ...     collectives=(),
        ...     timeline=Timeline(num_actors=1, spans=()),
        ... )
        >>> f"{walked.compute_s * 1e3:g} ms"
        '1.5 ms'
    """

    time_s: float
    communication_s: float
    stalled_s: float
    flops: float
    collectives: tuple[WalkedCollective, ...]
    timeline: Timeline

    @property
    def compute_s(self) -> float:
        return self.time_s - self.communication_s


def walk_schedule(operations: Sequence[ScheduledOperation], costs: OperationCosts) -> WalkedProgram:
    """Walks the operations of a module (`jaxquard.hlo.list_schedule`)."""
    chip = _Chip(costs)
    chip.walk(operations)
    time_s = max([chip.now_s, *chip.links_free_s.values()])
    return WalkedProgram(
        time_s=time_s,
        communication_s=chip.exposed_s,
        stalled_s=chip.stalled_s,
        flops=chip.flops,
        collectives=tuple(chip.collectives.values()),
        timeline=Timeline(num_actors=1, spans=tuple(sorted(chip.spans, key=lambda span: span.start_s))),
    )


@dataclass(slots=True)
class _Transfer:
    """One that goes on: a collective, or a copy."""

    end_s: float
    is_copy: bool


class _Chip:
    """The state of a walk."""

    def __init__(self, costs: OperationCosts) -> None:
        self._costs = costs
        self.now_s = self.exposed_s = self.stalled_s = self.flops = 0.0
        self.links_free_s: dict[Hashable, float] = {}
        self.collectives: dict[tuple[str, str], WalkedCollective] = {}
        self.spans: list[Span] = []
        self._copies_free_s = 0.0
        self._under_way: dict[tuple[str, str], _Transfer] = {}
        # How many runs the operations that are walked stand for.
        self._weight = 1

    def walk(self, operations: Sequence[ScheduledOperation]) -> None:
        for operation in operations:
            _STEPS[operation.kind](self, operation)

    def compute(self, operation: ScheduledOperation) -> None:
        start_s = self.now_s
        self.now_s += self._costs.compute_s(operation)
        self.flops += self._weight * operation.flops
        self._hold_copies(start_s, self._costs.memory_s(operation.read_bytes + operation.written_bytes))
        self._show(operation.name, Track.COMPUTE, start_s, self.now_s, operation.read_bytes + operation.written_bytes)

    def _hold_copies(self, start_s: float, memory_s: float) -> None:
        """Delays the copies that go on by the traffic of an operation, which lasts no longer than the operation."""
        memory_s = min(memory_s, self.now_s - start_s)
        for transfer in self._under_way.values():
            if transfer.is_copy and transfer.end_s > start_s:
                transfer.end_s += memory_s
        if self._copies_free_s > start_s:
            self._copies_free_s += memory_s

    def collective(self, operation: ScheduledOperation) -> None:
        before_s = self.now_s
        self.now_s = self._send(operation)
        self._expose(operation, self.now_s - before_s)

    def _send(self, operation: ScheduledOperation) -> float:
        """Puts a collective on its links and returns when it ends."""
        work = operation.collective
        assert work is not None
        links, time_s = self._costs.links(work), self._costs.collective_s(work)
        start_s = max([self.now_s, *(self.links_free_s.get(link, 0.0) for link in links)])
        self.links_free_s |= dict.fromkeys(links, start_s + time_s)
        self._count(operation, work, time_s)
        self._show(operation.name, Track.TRANSFER, start_s, start_s + time_s, work.size_bytes)
        return start_s + time_s

    def _count(self, operation: ScheduledOperation, work: CollectiveWork, time_s: float) -> None:
        key = (operation.computation, operation.name)
        known = self.collectives.get(key)
        self.collectives[key] = WalkedCollective(
            name=operation.name,
            opcode=work.opcode,
            size_bytes=work.size_bytes,
            group_size=max(map(len, work.groups), default=1),
            time_s=time_s,
            exposed_s=known.exposed_s if known else 0.0,
            times=(known.times if known else 0) + self._weight,
            source=operation.source,
        )

    def _expose(self, operation: ScheduledOperation, time_s: float) -> None:
        self.exposed_s += self._weight * time_s
        key = (operation.computation, operation.start or operation.name)
        known = self.collectives[key]
        self.collectives[key] = replace(known, exposed_s=known.exposed_s + self._weight * time_s)

    def start(self, operation: ScheduledOperation) -> None:
        key = (operation.computation, operation.name)
        if operation.collective is not None:
            self._under_way[key] = _Transfer(end_s=self._send(operation), is_copy=False)
        elif operation.bodies:
            # Other work beside the schedule: it shares the chip, so it counts as if it came first.
            self.walk(operation.bodies[0])
        else:
            begin_s = max(self.now_s, self._copies_free_s)
            self._copies_free_s = begin_s + self._costs.memory_s(operation.read_bytes)
            self._under_way[key] = _Transfer(end_s=self._copies_free_s, is_copy=True)

    def done(self, operation: ScheduledOperation) -> None:
        assert operation.start is not None
        transfer = self._under_way.pop((operation.computation, operation.start), None)
        if transfer is None or transfer.end_s <= self.now_s:
            return
        waited_s = transfer.end_s - self.now_s
        self.now_s = transfer.end_s
        if transfer.is_copy:
            self.stalled_s += self._weight * waited_s
        else:
            self._expose(operation, waited_s)

    def loop(self, operation: ScheduledOperation) -> None:
        (body,) = operation.bodies
        if operation.times > 0:
            self.walk(body)
        if operation.times > 1:
            weight, before_s = self._weight, self.now_s
            self._weight = weight * (operation.times - 1)
            self.walk(body)
            self._weight = weight
            self._skip(operation, (self.now_s - before_s) * (operation.times - 2))

    def _skip(self, operation: ScheduledOperation, time_s: float) -> None:
        """Lets the time of further iterations pass; what goes on after the last one goes on as after this one."""
        if time_s > 0:
            name = f"{operation.name}: {operation.times - 2} more iterations"
            self._show(name, Track.COMPUTE, self.now_s, self.now_s + time_s, 0)
        self.now_s += time_s
        self._copies_free_s += time_s
        self.links_free_s = {link: free_s + time_s for link, free_s in self.links_free_s.items()}
        for transfer in self._under_way.values():
            transfer.end_s += time_s

    def branch(self, operation: ScheduledOperation) -> None:
        chips = []
        for body in operation.bodies:
            chip = copy.copy(self)
            chip.__dict__ = {
                name: copy.deepcopy(value) if isinstance(value, dict | list) else value
                for name, value in vars(self).items()
            }
            chip.walk(body)
            chips.append(chip)
        slowest = max(chips, key=lambda chip: chip.now_s, default=self)
        self.__dict__ = slowest.__dict__

    def call(self, operation: ScheduledOperation) -> None:
        for body in operation.bodies:
            self.walk(body)

    def _show(self, name: str, track: Track, start_s: float, end_s: float, size_bytes: int) -> None:
        if end_s > start_s:
            self.spans.append(
                Span(actor=0, track=track, name=name, start_s=start_s, end_s=end_s, size_bytes=size_bytes)
            )


_STEPS = {
    OperationKind.COMPUTE: _Chip.compute,
    OperationKind.COLLECTIVE: _Chip.collective,
    OperationKind.START: _Chip.start,
    OperationKind.DONE: _Chip.done,
    OperationKind.LOOP: _Chip.loop,
    OperationKind.BRANCH: _Chip.branch,
    OperationKind.CALL: _Chip.call,
}
