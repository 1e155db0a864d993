"""The costs of a segment's strategies for one microbatch on an actor's mesh, as numbers alone.

All of it is of one device of the actor. A stage is a run of segments: its times and bytes are sums over them (its
working bytes the largest of theirs, as segments run one after the other), and between neighbours inside of a stage
values are resharded.
"""

import functools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCost:
    """Seconds and bytes of a segment under one strategy.

    Attributes:
        forward_s: of one microbatch.
        input_gradient_s: of one microbatch; what the segment before waits for.
        weight_gradient_s: of one microbatch.
        recompute_s: of one microbatch, at the beginning of the backward; not part of the others.
        step_s: once a step: the sums of gradients over replicas, the gathers of sharded state and the update.
        gradient_sum_s: the part of `step_s` in sums and gathers.
        communication_s: the part of one microbatch's times in exposed collectives.
        weight_bytes: of parameters as they are used, all the time.
        gradient_bytes: of the sums over microbatches, all the time.
        optimizer_bytes: of the optimizer's state, all the time.
        activation_bytes: kept for one microbatch from its forward to its backward.
        working_bytes: of temporary values while a task runs.
        entry: which of the segment's entry layouts it has.
        exit: which of its exit layouts.
    """

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    recompute_s: float = 0.0
    step_s: float = 0.0
    gradient_sum_s: float = 0.0
    communication_s: float = 0.0
    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    working_bytes: int = 0
    entry: int = 0
    exit: int = 0

    @property
    def microbatch_s(self) -> float:
        """The seconds of one microbatch, forward and backward."""
        return self.forward_s + self.recompute_s + self.input_gradient_s + self.weight_gradient_s

    @property
    def fixed_bytes(self) -> int:
        """The bytes that are there all the time."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes


# The columns of costs as arrays.
SECONDS = tuple(name for name in SegmentCost.__dataclass_fields__ if name.endswith("_s"))
COUNTS = tuple(name for name in SegmentCost.__dataclass_fields__ if not name.endswith("_s"))


class CostTable(Sequence[SegmentCost]):
    """The costs of a segment's strategies as arrays; each is made when it is asked for.

    A search over meshes has tens of thousands of them, and looks at few by themselves.

    Attributes:
        seconds: by the names of `SECONDS`.
        counts: by the names of `COUNTS`.
    """

    def __init__(self, seconds: Float[np.ndarray, "strategies 7"], counts: Int[np.ndarray, "strategies 7"]) -> None:
        self.seconds, self.counts = seconds, counts

    @staticmethod
    def of(costs: Iterable[SegmentCost]) -> "CostTable":
        """Returns costs as arrays."""
        if isinstance(costs, CostTable):
            return costs
        rows = tuple(costs)
        seconds = np.asarray([[getattr(cost, name) for name in SECONDS] for cost in rows], dtype=np.float64)
        counts = np.asarray([[getattr(cost, name) for name in COUNTS] for cost in rows], dtype=np.int64)
        return CostTable(seconds.reshape(-1, len(SECONDS)), counts.reshape(-1, len(COUNTS)))

    def column(self, name: str) -> np.ndarray:
        """Returns one number of each strategy, by its name in `SegmentCost`."""
        if name in SECONDS:
            return self.seconds[:, SECONDS.index(name)]
        return self.counts[:, COUNTS.index(name)]

    @functools.cached_property
    def microbatch_s(self) -> Float[np.ndarray, " strategies"]:
        """The seconds of one microbatch, forward and backward."""
        names = "forward_s", "recompute_s", "input_gradient_s", "weight_gradient_s"
        forward_s, recompute_s, input_gradient_s, weight_gradient_s = map(self.column, names)
        return forward_s + recompute_s + input_gradient_s + weight_gradient_s

    @functools.cached_property
    def fixed_bytes(self) -> Int[np.ndarray, " strategies"]:
        """The bytes that are there all the time."""
        return self.column("weight_bytes") + self.column("gradient_bytes") + self.column("optimizer_bytes")

    @overload
    def __getitem__(self, place: int) -> SegmentCost: ...

    @overload
    def __getitem__(self, place: slice) -> "CostTable": ...

    def __getitem__(self, place: int | slice) -> "SegmentCost | CostTable":
        if isinstance(place, slice):
            return CostTable(self.seconds[place], self.counts[place])
        numbers = zip((*SECONDS, *COUNTS), (*self.seconds[place].tolist(), *self.counts[place].tolist()), strict=True)
        return SegmentCost(**dict(numbers))

    def __len__(self) -> int:
        return len(self.seconds)

    def __iter__(self) -> Iterator[SegmentCost]:
        return (self[place] for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CostTable):
            return NotImplemented
        return np.array_equal(self.seconds, other.seconds) and np.array_equal(self.counts, other.counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentCosts:
    """A segment at its place in the step, with the costs of its strategies.

    Attributes:
        kind: segments of one kind have equal costs: the same object serves them all where their reshards are alike.
        strategies: one cost each; a strategy without a price is left out. Any sequence becomes `CostTable`.
        reshards_s: of one microbatch, forward and backward together, from each exit layout of the segment before to
            each entry layout of this one, where both are in one stage; None for the first.
        input_bytes: of the values that enter it from the segment before, of one microbatch and one device: a transfer,
            if a stage begins here; its gradient has the same.
        can_begin_stage: whether a stage may begin here.
    """

    kind: int
    strategies: Sequence[SegmentCost] = field(repr=False)
    reshards_s: Float[np.ndarray, "previous_exits entries"] | None = field(default=None, repr=False)
    input_bytes: int = 0
    can_begin_stage: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategies", CostTable.of(self.strategies))

    @property
    def costs(self) -> CostTable:
        """The costs of the strategies as arrays."""
        assert isinstance(self.strategies, CostTable)
        return self.strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """The shape of a pipeline.

    Attributes:
        num_actors: of the pipeline.
        num_stages: a multiple of the actors.
        schedule: its name in `schedules.SCHEDULES`; "none" for one actor.
        num_microbatches: of a step.
    """

    num_actors: int
    num_stages: int
    schedule: str
    num_microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAssignment:
    """The segments of each stage, and the strategy of each segment.

    Attributes:
        stops: for each stage, the segment after its last.
        strategies: for each segment, the place of its strategy in `SegmentCosts.strategies`.
        time_s: of the step, as played or by the bound of the dynamic program.
        peak_bytes: of each actor.
    """

    stops: tuple[int, ...]
    strategies: tuple[int, ...]
    time_s: float
    peak_bytes: tuple[int, ...]


def count_state_bytes(chain: Sequence[SegmentCosts]) -> int:
    """Returns the smallest sum of what the segments hold all the time, each with a strategy of its own choice."""
    segments = {id(segment): segment for segment in chain}
    counts = Counter(map(id, chain))
    smallest = {key: int(one.costs.fixed_bytes.min()) for key, one in segments.items()}
    return sum(smallest[key] * count for key, count in counts.items())


def share_equal(chain: Sequence[SegmentCosts]) -> tuple[SegmentCosts, ...]:
    """Returns the chain with one kind for equal costs, and one segment where all else is equal too.

    The layers at the ends of a step have neighbours of other layouts than those between, and are kinds of their own
    where strategies are written. What a search finds for one of them, it need not find again for another.
    """
    kinds: dict[Hashable, tuple[int, CostTable]] = {}
    reshards: dict[Hashable, np.ndarray | None] = {None: None}
    made: dict[Hashable, SegmentCosts] = {}
    shared: dict[int, SegmentCosts] = {}
    for key, segment in {id(one): one for one in chain}.items():
        costs, table = segment.costs, segment.reshards_s
        kind, costs = kinds.setdefault((costs.seconds.tobytes(), costs.counts.tobytes()), (len(kinds), costs))
        content = None if table is None else (table.shape, table.tobytes())
        table = reshards.setdefault(content, table)
        parts = kind, content, segment.input_bytes, segment.can_begin_stage
        if parts not in made:
            made[parts] = replace(segment, kind=kind, strategies=costs, reshards_s=table)
        shared[key] = made[parts]
    return tuple(shared[id(segment)] for segment in chain)


def content_of(chain: Sequence[SegmentCosts]) -> Hashable:
    """Returns a key that chains share if all their numbers are equal."""
    parts = {
        key: (
            one.costs.seconds.tobytes(),
            one.costs.counts.tobytes(),
            None if one.reshards_s is None else one.reshards_s.tobytes(),
            one.input_bytes,
            one.can_begin_stage,
        )
        for key, one in {id(one): one for one in chain}.items()
    }
    return tuple(parts[id(one)] for one in chain)
