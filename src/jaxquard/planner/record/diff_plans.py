"""Two plans side by side: what differs between them, then their times and memory by term, with ratios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.errors import PlanError
from jaxquard.intraop.segments.fold_repeats import span_text
from jaxquard.ir.codec import to_data
from jaxquard.planner.record.fold_blocks import block_rows
from jaxquard.planner.record.plan_data import PlanData
from jaxquard.planner.record.summarise_plan import (
    axes_text,
    memory_by_term,
    microbatches_text,
    pipeline_text,
    time_by_term,
)
from jaxquard.planner.record.tables import (
    WIDTH,
    align_table,
    bytes_text,
    percent_text,
    ratio_text,
    shorten_cell,
    time_text,
)

# Cells of texts are as wide as two of them and a name allow.
_CELL = (WIDTH - 24) // 2
# Of more runs of blocks, the first, the second and the last are named.
_MOST_SPANS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDifference:
    """A setting that two plans have differently, as text.

    Attributes:
        part: "schedule", "mesh", "blocks 3-7" ...
    """

    part: str
    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """Two plans side by side; `print` shows the differences, then the times and the memory.

    Attributes:
        names: of the two plans, in the table's head.
        differences: settings, stages and shardings that are not the same.
        times_s: for each term of the step's time, and "step" for the whole, the seconds of both.
        memory_bytes: for each term of a device's memory, and "device" for the whole, the bytes of both.
        mfus: of both; None where the cluster gives no peak.
    """

    names: tuple[str, str]
    differences: tuple[PlanDifference, ...]
    times_s: Mapping[str, tuple[float, float]]
    memory_bytes: Mapping[str, tuple[int, int]]
    mfus: tuple[float | None, float | None]

    @property
    def is_same(self) -> bool:
        """True if the two plans run the step in the same way."""
        return not self.differences

    def as_json(self) -> dict[str, Any]:
        """Returns the comparison as plain data for JSON."""
        return to_data(self)

    def __str__(self) -> str:
        parts = [_difference_lines(self), _cost_lines(self)]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)


def diff(plan: PlanData, other: PlanData, *, names: tuple[str, str] = ("first", "second")) -> PlanDiff:
    """Compares two plans: what differs, then times and memory by term.

    Args:
        names: of the plans, for the text.

    Raises:
        PlanError: if an argument is no plan.

    Example:
        >>> from dataclasses import replace
        >>> from jaxquard.planner.record.plan_data import StagePlan
        >>> stage = StagePlan(
        ...     name="all", actor=0, blocks=(0, 1), strategies=(("rows",),), forward_s=0.1, backward_s=0.2
        ... )
        >>> plan = jq.Plan(
        ...     model="train:loss",
        ...     cluster="cpu",
        ...     num_devices=2,
        ...     num_actors=1,
        ...     axes={"data": 2},
        ...     schedule="none",
        ...     num_microbatches=4,
        ...     microbatch_size=8,
        ...     global_batch=32,
        ...     stages=(stage,),
        ...     time_s=1.2,
        ... )
        >>> found = jq.diff(plan, replace(plan, num_microbatches=2, microbatch_size=16, time_s=1.5))
        >>> [(one.part, one.first, one.second) for one in found.differences]
        [('microbatches', '4 of 8 rows', '2 of 16 rows')]
        >>> found.times_s["step"]
        (1.2, 1.5)
    """
    for given in (plan, other):
        if not isinstance(given, PlanData):
            raise PlanError(f"diff takes two plans, such as `jq.load_plan` returns, but one is {given!r:.80}.")
    first_times, second_times = ({"step": one.time_s, **time_by_term(one.times)} for one in (plan, other))
    first_sizes, second_sizes = ({"device": one.memory_bytes, **memory_by_term(one.memory)} for one in (plan, other))
    return PlanDiff(
        names=names,
        differences=(*_setting_differences(plan, other), *_stage_differences(plan, other)),
        times_s={
            name: (first_times.get(name, 0.0), second_times.get(name, 0.0)) for name in first_times | second_times
        },
        memory_bytes={
            name: (first_sizes.get(name, 0), second_sizes.get(name, 0)) for name in first_sizes | second_sizes
        },
        mfus=(plan.mfu, other.mfu),
    )


def _settings(plan: PlanData) -> dict[str, str]:
    key = "not traced" if plan.fingerprint is None else plan.fingerprint.key
    return {
        "model": plan.model,
        "step": shorten_cell(key, 16),
        "cluster": f"{plan.cluster}, {plan.num_devices:,} devices",
        "pipeline": pipeline_text(plan),
        "mesh": axes_text(plan),
        "microbatches": microbatches_text(plan),
        "global batch": f"{plan.global_batch:,}",
        "recompute": plan.recompute.value,
        "storage": plan.storage,
        **plan.settings,
    }


def _setting_differences(plan: PlanData, other: PlanData) -> list[PlanDifference]:
    first, second = _settings(plan), _settings(other)
    return [
        PlanDifference(part=name, first=first.get(name, "-"), second=second.get(name, "-"))
        for name in first | second
        if first.get(name) != second.get(name)
    ]


def _stage_differences(plan: PlanData, other: PlanData) -> list[PlanDifference]:
    """Returns where stages end and how blocks are sharded, where the two plans are of the same blocks."""
    if plan.num_blocks != other.num_blocks:
        return [PlanDifference(part="blocks", first=str(plan.num_blocks), second=str(other.num_blocks))]
    found = []
    if plan.stage_stops != other.stage_stops:
        stops = (", ".join(map(str, one.stage_stops[:-1])) or "nowhere" for one in (plan, other))
        first, second = stops
        found.append(PlanDifference(part="stages end at", first=first, second=second))
    pairs = list(zip(block_rows(plan), block_rows(other), strict=True))
    strategies = [("/".join(first[0]) or "-", "/".join(second[0]) or "-") for first, second in pairs]
    groups: dict[tuple[str, str], list[int]] = {}
    for number, pair in enumerate(strategies):
        groups.setdefault(pair, []).append(number)
    unit = "layers" if plan.fingerprint is None else "blocks"
    found += [
        PlanDifference(part=f"{unit} {_numbers_text(numbers)}", first=first, second=second)
        for (first, second), numbers in groups.items()
        if first != second
    ]
    return found


def _numbers_text(numbers: Sequence[int]) -> str:
    """Returns `3`, `1-4, 9` or, of many that are apart, `1, 7, ... 139 (24)`."""
    known = set(numbers)
    starts = [number for number in numbers if number - 1 not in known]
    stops = [number for number in numbers if number + 1 not in known]
    if len(starts) > _MOST_SPANS:
        return f"{starts[0]}, {starts[1]}, ... {starts[-1]} ({len(numbers)})"
    return ", ".join(span_text(start, stop) for start, stop in zip(starts, stops, strict=True))


def _difference_lines(found: PlanDiff) -> list[str]:
    if found.is_same:
        return ["the two plans run the step in the same way"]
    rows = [("", *found.names)]
    rows += [(shorten_cell(one.part, 24), one.first, one.second) for one in found.differences]
    return align_table([tuple(shorten_cell(cell, _CELL) for cell in row) for row in rows])


def _cost_lines(found: PlanDiff) -> list[str]:
    """Returns the times and the bytes of both, and the ratio of the second to the first."""
    rows = [("", *(shorten_cell(name, _CELL) for name in found.names), "ratio")]
    for name, (first, second) in found.times_s.items():
        label = "time of a step" if name == "step" else f"  {name}"
        rows.append((label, time_text(first), time_text(second), ratio_text(second, first)))
    for name, (one, two) in found.memory_bytes.items():
        label = "memory of a device" if name == "device" else f"  {name}"
        rows.append((label, bytes_text(one), bytes_text(two), ratio_text(two, one)))
    if any(mfu is not None for mfu in found.mfus):
        texts = ("-" if mfu is None else percent_text(mfu) for mfu in found.mfus)
        rows.append(("MFU", *texts, ratio_text(found.mfus[1] or 0.0, found.mfus[0] or 0.0)))
    return align_table(rows, right=(1, 2, 3))
