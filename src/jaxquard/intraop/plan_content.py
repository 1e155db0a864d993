"""A plan as plain data, ready for JSON; `load_plan` reads it back."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxquard.intraop.sharding_plan import ShardingPlan

SCHEMA = 1


def plan_content(plan: "ShardingPlan") -> dict[str, Any]:
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
