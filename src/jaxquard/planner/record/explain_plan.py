"""Explains parts of a plan: what was chosen, what the next best would cost, and which term decides.

Alternatives that the search priced are in the plan. Layers that recur share their prices, so that the alternative of
one block speaks for all that are alike.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.errors import PlanError
from jaxquard.intraop.segments.fold_repeats import span_text
from jaxquard.planner.record.fold_blocks import block_rows, find_layers, fold_blocks
from jaxquard.planner.record.match_names import is_line, match_line, match_path, nearest_names, path_prefixes
from jaxquard.planner.record.plan_data import PlanAlternative, PlanData, StagePlan
from jaxquard.planner.record.summarise_plan import (
    axes_text,
    baseline_lines,
    memory_by_term,
    memory_lines,
    microbatches_text,
    pipeline_text,
    time_by_term,
    time_lines,
)
from jaxquard.planner.record.tables import (
    align_table,
    bytes_text,
    percent_text,
    signed_text,
    time_text,
    wrap_prose,
)

SETTINGS = ("schedule", "stages", "mesh", "microbatches", "recompute", "storage")
_TABLES = {"time": time_lines, "memory": memory_lines, "baselines": baseline_lines}
_MAIN_BLOCKS = 5
_NUMBERED = re.compile(r"(stage|layer|block) (\d{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanExplanation:
    """The explanation of a part of a plan; `print` shows it.

    Attributes:
        part: that was asked for; "" for the main decisions.
        lines: of the text.
        alternatives: that the text speaks of.
    """

    part: str
    lines: tuple[str, ...]
    alternatives: tuple[PlanAlternative, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def explain_part(plan: PlanData, part: str) -> PlanExplanation:
    """Explains a part of a plan; `Plan.explain` says which parts there are.

    Raises:
        PlanError: if the plan has no such part.
    """
    name = part.strip() if isinstance(part, str) else ""
    if not isinstance(part, str):
        raise PlanError(f"part should be a text, such as 'schedule' or 'layer 3', found {part!r:.80}.")
    if not name:
        return _explain_all(plan)
    if name in _TABLES:
        lines = _TABLES[name](plan) or [f"the plan has no {name}"]
        return PlanExplanation(part=name, lines=tuple(lines), alternatives=())
    if name in SETTINGS:
        return _explain_setting(plan, name)
    if name.startswith("stage ") and (number := _number(name, plan.num_stages)) is not None:
        return _explain_stage(plan, number)
    blocks = find_blocks_of(plan, name)
    if blocks:
        return _explain_blocks(plan, name, blocks)
    near = " or ".join(f"'{one}'" for one in nearest_names(name, _known_parts(plan, name)))
    raise PlanError(f"the plan has no part {name!r:.80}. Ask for {near}; or for nothing, to see the main decisions.")


def find_blocks_of(plan: PlanData, name: str) -> list[int]:
    """Returns the blocks that a name means: of a layer, a path or a line; nothing for an unknown name."""
    rows = block_rows(plan)
    if name.startswith("block "):
        number = _number(name, len(rows))
        return [] if number is None else [number]
    if name.startswith("layer "):
        found = _NUMBERED.fullmatch(name)
        return [] if found is None else find_layers(plan).get(int(found[2]), [])
    if is_line(name):
        return [number for number, (_, line, _) in enumerate(rows) if match_line(name, line)]
    return [number for number, (*_, paths) in enumerate(rows) if any(match_path(name, path) for path in paths)]


def _number(name: str, count: int) -> int | None:
    found = _NUMBERED.fullmatch(name)
    return int(found[2]) if found is not None and int(found[2]) < count else None


def _known_parts(plan: PlanData, name: str) -> list[str]:
    """Returns all parts that `explain` takes, but for numbers, of which those near the one that was asked for."""
    rows, layers = block_rows(plan), find_layers(plan)
    numbers = {"stage": range(plan.num_stages), "layer": sorted(layers), "block": range(len(rows))}
    numbered = [
        f"{kind} {number}"
        for kind, known in numbers.items()
        if known
        for number in dict.fromkeys((known[0], known[-1]))
    ]
    paths = path_prefixes(path for *_, paths in rows for path in paths)
    return [*SETTINGS, *numbered, *_TABLES, *paths, *(line for _, line, _ in rows if line)]


def _explain_setting(plan: PlanData, name: str) -> PlanExplanation:
    alternatives = _alternatives(plan, name)
    texts = [f"{name}: {_chosen(plan, name)}", *_cost_texts(plan, alternatives[:3])]
    if not alternatives:
        texts.append("  no other was priced")
    if name == "stages":
        texts.append(f"  {_balance_text(plan)}")
    lines = [line for text in texts for line in wrap_prose(text, indent="    ")]
    return PlanExplanation(part=name, lines=tuple(lines), alternatives=tuple(alternatives))


def _chosen(plan: PlanData, name: str) -> str:
    chosen = {
        "schedule": plan.schedule if plan.num_stages > 1 else "none, as there is one stage",
        "stages": pipeline_text(plan),
        "mesh": axes_text(plan) if plan.num_actors == 1 else f"{axes_text(plan)} for each of {plan.num_actors} actors",
        "microbatches": microbatches_text(plan),
        "recompute": plan.recompute.value,
        "storage": plan.storage,
    }
    return chosen[name]


def _alternatives(plan: PlanData, part: str) -> list[PlanAlternative]:
    return sorted((one for one in plan.alternatives if one.part == part), key=lambda one: one.added_s)


def _cost_texts(plan: PlanData, alternatives: Sequence[PlanAlternative]) -> list[str]:
    """Returns texts such as `next best: gpipe, +12.3 ms a step (+4.1 %), +2.10 GB a device; bubble decides`."""
    texts, word = [], "next best"
    for one in alternatives:
        size = f"{_bytes_change(one.added_bytes)} a device" if one.added_bytes else ""
        decides = f"; {one.deciding} decides" if one.deciding else ""
        if one.added_s < 0:
            why = "but does not fit" if _does_not_fit(plan, one) else "though it was estimated slower"
            reason = f": {size}" if size else ""
            texts.append(f"  {one.alternative} would be {time_text(-one.added_s)} faster, {why}{reason}")
        else:
            cost = ", ".join(filter(None, (_time_change(plan, one.added_s), size)))
            texts.append(f"  {word}: {one.alternative}, {cost}{decides}")
            word = "then"
    return texts


def _does_not_fit(plan: PlanData, one: PlanAlternative) -> bool:
    limit_bytes = plan.memory_limit_bytes
    return limit_bytes is not None and plan.memory_bytes + one.added_bytes > limit_bytes


def _time_change(plan: PlanData, added_s: float) -> str:
    if added_s == float("inf"):
        return "which does not run"
    if not added_s:
        return "as fast"
    share = signed_text(percent_text(added_s / plan.time_s), added_s)
    return f"{signed_text(time_text(added_s), added_s)} a step ({share})"


def _bytes_change(added_bytes: int) -> str:
    return signed_text(bytes_text(added_bytes), added_bytes)


def _balance_text(plan: PlanData) -> str:
    times_s = [stage.forward_s + stage.backward_s for stage in plan.stages]
    if len(times_s) == 1 or not max(times_s):
        return f"a microbatch takes {time_text(sum(times_s))}"
    slowest = times_s.index(max(times_s))
    ratio = max(times_s) * len(times_s) / sum(times_s)
    return f"the slowest stage is {slowest} with {time_text(max(times_s))} a microbatch, {ratio:.2f} of the mean"


def _explain_stage(plan: PlanData, number: int) -> PlanExplanation:
    stage = plan.stages[number]
    unit = "layers" if plan.fingerprint is None else "blocks"
    total_s = stage.forward_s + stage.backward_s
    texts = [
        f"stage {number}: {stage.name}; {unit} {span_text(stage.blocks[0], stage.blocks[1] - 1)}, on actor "
        f"{stage.actor}",
        f"  a microbatch: forward {time_text(stage.forward_s)}, backward {time_text(stage.backward_s)}, together "
        f"{time_text(total_s)}; {_balance_text(plan)}",
    ]
    if stage.communication_s is not None and total_s:
        share = percent_text(stage.communication_s / total_s)
        texts.append(f"  exposed collectives: {time_text(stage.communication_s)} of that ({share})")
    terms = ", ".join(f"{name} {bytes_text(value)}" for name, value in memory_by_term(stage.memory).items())
    if terms:
        texts.append(f"  memory of a device: {bytes_text(stage.memory.total_bytes)}: {terms}")
    alternatives = _alternatives(plan, "stages")
    texts += _cost_texts(plan, alternatives[:1])
    texts += [f"  prices: {stage.provenance}"] if stage.provenance else []
    lines = [line for text in texts for line in wrap_prose(text, indent="    ")]
    table, of_blocks = _block_table(plan, list(range(*stage.blocks)))
    return PlanExplanation(part=f"stage {number}", lines=(*lines, *table), alternatives=(*alternatives, *of_blocks))


def _explain_blocks(plan: PlanData, name: str, blocks: Sequence[int]) -> PlanExplanation:
    stages = [number for number, stage in enumerate(plan.stages) if any(one in range(*stage.blocks) for one in blocks)]
    where = "stage" if len(stages) == 1 else "stages"
    unit = "layer" if plan.fingerprint is None else "block"
    count = f"{unit} {blocks[0]}" if len(blocks) == 1 else f"{len(blocks)} {unit}s"
    title = f"{name}: {'' if count == name else f'{count} '}in {where} {_numbers_text(stages)}"
    table, alternatives = _block_table(plan, blocks)
    of_mesh = _alternatives(plan, "mesh")
    if not alternatives:
        is_named = plan.fingerprint is None
        table.append("its sharding follows from the mesh:" if is_named else "no other sharding was priced on its mesh:")
        table += _explain_setting(plan, "mesh").lines
        alternatives = of_mesh
    return PlanExplanation(part=name, lines=(title, *table), alternatives=tuple(alternatives))


def _numbers_text(numbers: Sequence[int]) -> str:
    is_run = numbers[-1] - numbers[0] == len(numbers) - 1
    return span_text(numbers[0], numbers[-1]) if is_run else ", ".join(map(str, numbers))


def _block_table(plan: PlanData, blocks: Sequence[int]) -> tuple[list[str], list[PlanAlternative]]:
    """Returns a row for every block, those that are alike together, and the alternatives that they show."""
    rows, same_as = block_rows(plan), _alike_blocks(plan)
    groups: dict[int, list[int]] = {}  # By the first block that is alike.
    for block in blocks:
        groups.setdefault(same_as[block], []).append(block)
    unit = "layer" if plan.fingerprint is None else "block"
    table: list[tuple[str, ...]] = [(unit, "chosen", "next best", "would add", "decides", "where")]
    shown = []
    for members in groups.values():
        names, line, _ = rows[members[0]]
        found = _find_alternative(plan, members[0], same_as)
        count = str(members[0]) if len(members) == 1 else f"{members[0]} ({len(members)} x)"
        cost = ("-", "-", "-") if found is None else _cost_cells(plan, found)
        shown += [] if found is None else [found]
        table.append((count, "/".join(names) or "-", *cost, line))
    columns = [0, 1, *([2, 3, 4] if shown else []), *([5] if any(row[-1] for row in table[1:]) else [])]
    return align_table([tuple(row[column] for column in columns) for row in table]), shown


def _find_alternative(plan: PlanData, block: int, same_as: Sequence[int]) -> PlanAlternative | None:
    """Returns the alternative of a block: its own, or of one that is alike, on its stage or on one like it if any."""
    own = _stage_of(plan, block)
    alike = [
        (other != block, stage is not own, (stage.forward_s, stage.backward_s) != (own.forward_s, own.backward_s), one)
        for one in plan.alternatives
        if (other := _block_of(plan, one)) is not None and same_as[other] == same_as[block]
        if (stage := _stage_of(plan, other))
    ]
    return min(alike, key=lambda found: found[:3])[3] if alike else None


def _stage_of(plan: PlanData, block: int) -> StagePlan:
    return next(stage for stage in plan.stages if block in range(*stage.blocks))


def _block_of(plan: PlanData, one: PlanAlternative) -> int | None:
    """Returns the block that an alternative is of; None for that of a setting."""
    found = _NUMBERED.fullmatch(one.part)
    is_block = found is not None and found[1] == "block" and int(found[2]) < plan.num_blocks
    return int(found[2]) if found is not None and is_block else None


def _cost_cells(plan: PlanData, one: PlanAlternative) -> tuple[str, str, str]:
    parts = [_time_change(plan, one.added_s).replace(" a step", "")]
    parts += [_bytes_change(one.added_bytes)] if one.added_bytes else []
    if _does_not_fit(plan, one):
        parts.append("does not fit")
    return one.alternative, ", ".join(parts), one.deciding or "-"


def _alike_blocks(plan: PlanData) -> list[int]:
    """Returns for each block the first that has the same place in a layer that recurs."""
    found = []
    for fold in fold_blocks(plan):
        found += [fold.start + place for _ in range(fold.count) for place in range(fold.period)]
    return found


def _explain_all(plan: PlanData) -> PlanExplanation:
    """Explains the settings, then the blocks whose next best would cost most, then the largest terms."""
    lines: list[str] = []
    shown: list[PlanAlternative] = []
    for name in SETTINGS:
        explained = _explain_setting(plan, name)
        lines += explained.lines
        shown += explained.alternatives
    same_as = _alike_blocks(plan)
    largest: dict[int, int] = {}
    for one in sorted(plan.alternatives, key=lambda one: -one.added_s):
        block = _block_of(plan, one)
        if block is not None:
            largest.setdefault(same_as[block], block)
    if largest:
        table, more = _block_table(plan, [*largest.values()][:_MAIN_BLOCKS])
        lines += ["", "blocks whose sharding matters most:", *table]
        shown += more
    return PlanExplanation(part="", lines=(*lines, "", *_deciding_lines(plan)), alternatives=tuple(shown))


def _deciding_lines(plan: PlanData) -> list[str]:
    """Returns a line on the terms of time and one on those of memory, the largest first."""
    times = [f"{name} {percent_text(value / plan.time_s)}" for name, value in time_by_term(plan.times).items()]
    total = max(plan.memory_bytes, 1)
    sizes = [f"{name} {percent_text(value / total)}" for name, value in memory_by_term(plan.memory).items()]
    texts = [
        f"{time_text(plan.time_s)} a step{': ' if times else ''}{', '.join(times)}",
        f"{bytes_text(plan.memory_bytes)} a device{': ' if sizes else ''}{', '.join(sizes)}",
    ]
    return [line for text in texts for line in wrap_prose(text)]
