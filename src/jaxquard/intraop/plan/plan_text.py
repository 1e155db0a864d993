"""A plan as a table: what a user reads."""

from itertools import groupby

from jaxquard.intraop.plan.plan_record import PlannedSegment, PlanRecord
from jaxquard.intraop.shardings.layouts import Storage


def plan_text(plan: PlanRecord) -> str:
    """Segments with their strategies, then the plan beside its rivals."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.axes.items())
    lines = [f"sharding over {mesh}: {_time(plan.time_s)} a step, {_size(plan.size_bytes)} a device (predicted)", ""]
    if plan.storage is not Storage.AS_USED:
        lines[0] += f", state kept as {plan.storage.value} does"
    rows: list[tuple[str, ...]] = [("segment", "strategy of its blocks", "time", "reshard", "memory", "where")]
    number = 0
    for _, group in groupby(plan.segments, key=lambda segment: (segment.kind, segment.strategy, segment.reshard_s)):
        same = list(group)
        rows.append(_row(number, same))
        number += len(same)
    lines += _align(rows)
    lines.append("")
    rivals: list[tuple[str, ...]] = [
        ("plan", "time", "of ours", "memory"),
        ("this one", _time(plan.time_s), "1.00", _size(plan.size_bytes)),
    ]
    for rival in sorted(plan.rivals, key=lambda rival: rival.time_s):
        has_price = rival.time_s != float("inf")
        ratio, size = (f"{rival.time_s / plan.time_s:.2f}", _size(rival.size_bytes)) if has_price else ("-", "-")
        rivals.append((rival.name, _time(rival.time_s), ratio, size))
    lines += _align(rivals)
    lines += ["", f"{plan.num_programs} prices of parts, then of plans ({plan.provenance})"] if plan.provenance else []
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def _row(number: int, same: list[PlannedSegment]) -> tuple[str, ...]:
    first, count = same[0], len(same)
    name = f"{number}" if count == 1 else f"{number}-{number + count - 1}"
    strategy = ", ".join("/".join(names) for names in first.strategy)
    times = "" if count == 1 else f" x {count}"
    where = " ".join(dict.fromkeys(first.lines))
    reshard = _time(first.reshard_s) if first.reshard_s else "-"
    return name, strategy, _time(first.time_s) + times, reshard, _size(first.size_bytes) + times, where


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _time(time_s: float) -> str:
    return "no price" if time_s == float("inf") else f"{time_s * 1e3:.2f} ms"


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
