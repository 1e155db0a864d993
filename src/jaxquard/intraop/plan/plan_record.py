"""A sharding plan as data, and its JSON file: a choice for every block of a step, with its price."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from jax.sharding import PartitionSpec

from jaxquard.errors import ShardingError
from jaxquard.gemm.problem import LayerPlan
from jaxquard.intraop.blocks.two_dimensional import COLUMNS_2D, ROWS_2D
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.step.fingerprint import StepFingerprint
from jaxquard.ir.codec import DataError, Special, from_data, stored, to_data
from jaxquard.ir.parse_json import parse_json

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSegment:
    """One segment of a plan.

    Attributes:
        kind: segments of one kind were priced once.
        lines: of the user's code, where its first contractions stand, one for each block.
        parameters: for each block, the paths of the parameters that it uses; nothing in plans of before there were.
        scopes: that its contractions stand in.
        strategy: for each of its blocks, the choice on every axis.
        time_s: by itself.
        reshard_s: of resharding the values that enter it, and their gradients.
        size_bytes: on each device, by itself.
    """

    kind: int
    lines: tuple[str, ...]
    strategy: tuple[tuple[str, ...], ...]
    time_s: float
    reshard_s: float
    size_bytes: int
    parameters: tuple[tuple[str, ...], ...] = ()
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinePrice:
    """The price of a baseline, to compare the plan with; the time is infinite if the baseline failed."""

    name: str
    time_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan as data.

    Attributes:
        fingerprint: of the step that it was made for.
        axes: the mesh axes and their sizes.
        storage: the layout of state between steps.
        segments: in the order of the step.
        specs: for every argument of the step, by name, its sharding.
        time_s: of a step, as predicted: measured whole if it has few segments, else composed of pairs of neighbours.
        sum_s: the same with every segment by itself, as in equation (8).
        size_bytes: on each device, as predicted.
        num_programs: the number of programs that equation (7) counts.
        baselines: known recipes by the same prices.
        frontier: the minimum time for less and less memory, under the limit: seconds and bytes, by sums of segments.
        notes: programs that failed, operations without a rule, and other remarks to the user.
        provenance: where the prices come from.
        products: for each block that is a 2D product, by its number, the plan of each of its first contractions.
    """

    fingerprint: StepFingerprint = field(repr=False, metadata=stored(formerly=("step",)))
    axes: Mapping[str, int] = field(metadata=stored(minimum=1))
    storage: Storage = Storage.AS_USED
    segments: tuple[PlannedSegment, ...]
    specs: Mapping[str, PartitionSpec] = field(repr=False)
    time_s: float
    sum_s: float
    size_bytes: int
    num_programs: int
    baselines: tuple[BaselinePrice, ...] = field(default=(), metadata=stored(formerly=("rivals",)))
    frontier: tuple[tuple[float, int], ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    provenance: str = ""
    products: Mapping[str, tuple[LayerPlan, ...]] = field(default_factory=dict, repr=False)

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        """The choice of every block on every axis."""
        return tuple(names for segment in self.segments for names in segment.strategy)

    @property
    def assignment(self) -> dict[int, tuple[str, ...]]:
        """The choice of every block on every axis, by its number."""
        return dict(enumerate(self.choices))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of blocks in each segment."""
        return tuple(len(segment.strategy) for segment in self.segments)


def plan_content(plan: PlanRecord) -> dict[str, Any]:
    """Returns the content of a plan's file, as plain data for JSON."""
    record = PlanRecord(**{entry.name: getattr(plan, entry.name) for entry in fields(PlanRecord)})
    return {"schema": SCHEMA, **to_data(record, specials=_SPECIALS)}


def read_plan(path: str | Path) -> PlanRecord:
    """Reads a plan that was saved.

    Raises:
        ShardingError: if the file is no such plan.
    """
    try:
        content = parse_json(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ShardingError(f"{path} cannot be read as a plan: {reason}.") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise ShardingError(f"{path} is no sharding plan of schema {SCHEMA} (found {found!r:.80}). Search again.")
    del content["schema"]
    try:
        plan = from_data(PlanRecord, content, where="plan", specials=_SPECIALS)
        _check(plan, content)
    except DataError as error:
        raise ShardingError(f"{path} is no whole plan: {error}. Search again.") from error
    return plan


def _check(plan: PlanRecord, content: Mapping[str, Any]) -> None:
    """Checks what the types of the fields do not say: a saved plan has every key, and shards over its own axes."""
    for entry in fields(PlanRecord):
        # Plans of before 2D products were there have none.
        if entry.name != "products" and not content.keys() & {entry.name, *entry.metadata.get("formerly", ())}:
            raise DataError(f"plan lacks the key {entry.name}")
    if not plan.axes:
        raise DataError("plan.axes should have an axis")
    if plan.time_s == float("inf"):
        raise DataError("plan.time_s should be a number, found None")
    _check_products(plan)
    for name, spec in plan.specs.items():
        unknown = {axis for entry in spec for axis in _axes_in(entry)}.difference(plan.axes)
        if unknown:
            raise DataError(f"plan.specs.{name} is sharded over {', '.join(map(repr, sorted(map(str, unknown))))}")


def _check_products(plan: PlanRecord) -> None:
    """Checks that the blocks that are 2D products, and only they, have the plans of one."""
    for number, names in plan.assignment.items():
        if (ROWS_2D in names or COLUMNS_2D in names) and sorted(names) != [COLUMNS_2D, ROWS_2D]:
            raise DataError(
                f"block {number} should have {ROWS_2D} and {COLUMNS_2D} on its axes, found {', '.join(names)}"
            )
    wanted = {str(number) for number, names in plan.assignment.items() if ROWS_2D in names}
    if plan.products.keys() != wanted:
        found, missing = (", ".join(sorted(numbers)) or "none" for numbers in (plan.products.keys(), wanted))
        raise DataError(f"plan.products should be of the blocks {missing}, found {found}")


def _write_spec(spec: PartitionSpec) -> list[Any]:
    return [list(entry) if isinstance(entry, tuple) else entry for entry in spec]


def _read_spec(data: Any, where: str) -> PartitionSpec:
    if not isinstance(data, list):
        raise DataError(f"{where} should be a list, found {data!r:.80}")
    entries = [tuple(entry) if isinstance(entry, list) else entry for entry in data]
    for axis in (axis for entry in entries for axis in _axes_in(entry)):
        if not isinstance(axis, str):
            raise DataError(f"{where} should have names of axes, found {axis!r:.80}")
    return PartitionSpec(*entries)


def _axes_in(entry: Any) -> tuple[Any, ...]:
    """Returns the mesh axes that shard a dim."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


_SPECIALS = {PartitionSpec: Special(write=_write_spec, read=_read_spec)}
