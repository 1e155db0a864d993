"""The file of a sharding plan: JSON with a schema version, written and read."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jax.sharding import PartitionSpec

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.plan_record import PlannedSegment, PlanRecord, Rival
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.step.fingerprint import StepFingerprint

SCHEMA = 1


def plan_content(plan: PlanRecord) -> dict[str, Any]:
    """What a saved plan holds."""
    return {
        "schema": SCHEMA,
        "step": asdict(plan.fingerprint),
        "axes": dict(plan.axes),
        "storage": plan.storage.value,
        "segments": [
            asdict(segment) | {"time_s": _finite(segment.time_s), "reshard_s": _finite(segment.reshard_s)}
            for segment in plan.segments
        ],
        "specs": {
            name: [list(entry) if isinstance(entry, tuple) else entry for entry in spec]
            for name, spec in plan.specs.items()
        },
        "time_s": plan.time_s,
        "sum_s": _finite(plan.sum_s),
        "size_bytes": plan.size_bytes,
        "num_programs": plan.num_programs,
        "rivals": [asdict(rival) | {"time_s": _finite(rival.time_s)} for rival in plan.rivals],
        "frontier": [list(point) for point in plan.frontier],
        "notes": list(plan.notes),
        "provenance": plan.provenance,
    }


def _finite(time_s: float) -> float | None:
    return None if time_s == float("inf") else time_s


def read_plan(path: str | Path) -> PlanRecord:
    """Reads a plan that was saved.

    Raises:
        ShardingError: if the file is no such plan.
    """
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ShardingError(f"{path} cannot be read as a plan: {reason}.") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise ShardingError(f"{path} is no sharding plan of schema {SCHEMA} (found {found!r}). Search again.")
    try:
        return _plan(content)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ShardingError(f"{path} is no whole plan: {error!r}. Search again.") from error


def _plan(content: dict[str, Any]) -> PlanRecord:
    step = content["step"]
    axes = {axis: int(size) for axis, size in content["axes"].items()}
    specs = {name: _spec(entries) for name, entries in content["specs"].items()}
    if not axes or min(axes.values()) < 1:
        raise ValueError(f"axes of {axes}")
    for name, spec in specs.items():
        unknown = {axis for entry in spec for axis in _axes_in(entry)}.difference(axes)
        if unknown:
            raise ValueError(f"{name} is cut over {', '.join(map(repr, sorted(map(str, unknown))))}")
    return PlanRecord(
        fingerprint=StepFingerprint(
            types=tuple((name, type_) for name, type_ in step["types"]),
            key=step["key"],
            jax_version=step.get("jax_version", ""),
            outline=step.get("outline", ""),
        ),
        storage=Storage(content["storage"]),
        axes=axes,
        segments=tuple(_segment(segment) for segment in content["segments"]),
        specs=specs,
        time_s=float(content["time_s"]),
        sum_s=_seconds(content["sum_s"]),
        size_bytes=int(content["size_bytes"]),
        num_programs=int(content["num_programs"]),
        rivals=tuple(_rival(rival) for rival in content["rivals"]),
        frontier=tuple((float(time_s), int(size)) for time_s, size in content["frontier"]),
        notes=tuple(content["notes"]),
        provenance=content["provenance"],
    )


def _segment(content: dict[str, Any]) -> PlannedSegment:
    return PlannedSegment(
        kind=int(content["kind"]),
        lines=tuple(content["lines"]),
        strategy=tuple(tuple(names) for names in content["strategy"]),
        time_s=_seconds(content["time_s"]),
        reshard_s=_seconds(content["reshard_s"]),
        size_bytes=int(content["size_bytes"]),
    )


def _rival(content: dict[str, Any]) -> Rival:
    return Rival(name=content["name"], time_s=_seconds(content["time_s"]), size_bytes=int(content["size_bytes"]))


def _seconds(content: Any) -> float:
    return float("inf") if content is None else float(content)


def _spec(entries: list[Any]) -> PartitionSpec:
    return PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in entries))


def _axes_in(entry: Any) -> tuple[Any, ...]:
    """The mesh axes that cut a dim."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)
