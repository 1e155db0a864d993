"""A sharding plan as data: a choice for every block of a step, with its price."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jax.sharding import PartitionSpec

from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.step.fingerprint import StepFingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSegment:
    """One segment of a plan.

    Attributes:
        lines: where in the user's code its first contractions stand.
        strategy: for each of its blocks, the choice on every axis.
        reshard_s: what the value that enters it costs to reshard, forward and back.
    """

    kind: int
    lines: tuple[str, ...]
    strategy: tuple[tuple[str, ...], ...]
    time_s: float
    reshard_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A named plan beside the one that was chosen, by the same prices."""

    name: str
    time_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan as data.

    Attributes:
        axes: the mesh axes and their sizes.
        segments: in the order of the step.
        storage: how state is kept between steps.
        specs: for every argument of the step, by name, how it is cut.
        time_s: of a step, as predicted: measured whole if it has few segments, else put together from pairs of
            neighbours.
        sum_s: the same with every segment by itself, as in equation (8).
        size_bytes: on each device, as predicted.
        rivals: baselines by the same prices.
        frontier: the least time for less and less memory, under the limit: seconds and bytes, by the sums of segments.
        notes: what a user should know: candidates set aside, operations without a rule.
        provenance: where the prices come from.
    """

    fingerprint: StepFingerprint = field(repr=False)
    axes: Mapping[str, int]
    segments: tuple[PlannedSegment, ...]
    specs: Mapping[str, PartitionSpec] = field(repr=False)
    time_s: float
    sum_s: float
    size_bytes: int
    num_programs: int
    rivals: tuple[Rival, ...] = ()
    frontier: tuple[tuple[float, int], ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    provenance: str = ""
    storage: Storage = Storage.AS_USED

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        """For each block of the step, its choice on every axis."""
        return tuple(names for segment in self.segments for names in segment.strategy)

    @property
    def assignment(self) -> dict[int, tuple[str, ...]]:
        """The same by the number of the block."""
        return dict(enumerate(self.choices))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of blocks in each segment."""
        return tuple(len(segment.strategy) for segment in self.segments)
