"""The text of a plan: its settings, stages and shardings; time and memory by term; the usual plans beside it.

Stages and blocks that recur are shown once. No line has more than 100 columns, unless a name of the user's is longer.
"""

import math
from itertools import groupby

from jaxquard.intraop.segments.fold_repeats import Fold, fold_text, span_text, star_numbers
from jaxquard.planner.record.check_plan import NO_SCHEDULE
from jaxquard.planner.record.fold_blocks import block_rows, fold_blocks
from jaxquard.planner.record.plan_data import MemoryTerms, PlanBaseline, PlanData, StagePlan, TimeTerms
from jaxquard.planner.record.tables import (
    align_table,
    beside,
    bytes_text,
    percent_text,
    ratio_text,
    shorten_cell,
    time_text,
    wrap_prose,
)

_TIME_NAMES = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "collective_s": "collectives",
    "transfer_s": "transfers",
    "bubble_s": "bubble",
    "gradient_s": "gradient sums",
    "optimizer_s": "optimizer",
    "other_s": "other",
}
_PROOF_TEXTS = {True: "stages proven the fastest by the estimate", False: "stages found by a heuristic"}
_MEMORY_NAMES = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "activation_bytes": "activations",
    "working_bytes": "working",
}


def summarise_plan(plan: PlanData) -> str:
    """Returns the whole text of a plan."""
    parts = [
        _headline(plan),
        setting_lines(plan),
        stage_lines(plan),
        sharding_lines(plan),
        beside(time_lines(plan), memory_lines(plan)),
        baseline_lines(plan),
        _closing_lines(plan),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _headline(plan: PlanData) -> list[str]:
    memory = bytes_text(plan.memory_bytes)
    if plan.memory_limit_bytes is not None:
        memory += f" of {bytes_text(plan.memory_limit_bytes)}"
    mfu = "" if plan.mfu is None else f", MFU {percent_text(plan.mfu)}"
    devices = "1 device" if plan.num_devices == 1 else f"{plan.num_devices:,} devices"
    text = f"plan of {plan.model} on {plan.cluster}, {devices}: {time_text(plan.time_s)} a step{mfu}, {memory} a device"
    return wrap_prose(text)


def pipeline_text(plan: PlanData) -> str:
    """Returns the actors, stages and schedule in a few words."""
    if plan.schedule == NO_SCHEDULE:
        return "one stage, no pipeline"
    return f"{plan.num_actors} actors, {plan.num_stages} stages, {plan.schedule}"


def microbatches_text(plan: PlanData) -> str:
    """Returns the microbatches in a few words: `8 of 4 rows`."""
    rows = f"{plan.microbatch_size:,} row{'' if plan.microbatch_size == 1 else 's'}"
    return f"{plan.num_microbatches:,} of {rows}"


def axes_text(plan: PlanData) -> str:
    """Returns the axes of an actor's mesh: `data=4 x model=2`."""
    return " x ".join(f"{axis}={size}" for axis, size in plan.axes.items())


def setting_lines(plan: PlanData) -> list[str]:
    """Returns a line for each setting."""
    num_per_actor = math.prod(plan.axes.values())
    rows = [
        ("pipeline", pipeline_text(plan)),
        ("mesh", f"{axes_text(plan)}, {num_per_actor:,} devices an actor"),
        ("microbatches", f"{microbatches_text(plan)}, a global batch of {plan.global_batch:,}"),
        *([("loss", _LOSS_TEXTS[plan.loss_reduction])] if plan.loss_reduction in _LOSS_TEXTS else []),
        ("recompute", plan.recompute.value),
        ("storage", plan.storage),
        *((name, value) for name, value in plan.settings.items()),
    ]
    return align_table(rows)


_LOSS_TEXTS = {
    "per_microbatch": "the mean of the losses of microbatches, each on its own",
    "weighted": "a sum over its weight, both of the whole batch",
    "sum": "a sum over rows",
}


def stage_lines(plan: PlanData) -> list[str]:
    """Returns a table of the stages; neighbours that are alike have one row."""
    unit = "layers" if plan.fingerprint is None else "blocks"
    rows: list[tuple[str, ...]] = [("stage", "actor", unit, "forward", "backward", "memory", "")]
    numbered = enumerate(plan.stages)
    for _, group in groupby(numbered, key=lambda entry: _stage_key(entry[1])):
        rows.append(_stage_row(list(group)))
    return align_table(rows, right=(3, 4, 5))


def _stage_key(stage: StagePlan) -> tuple[object, ...]:
    """Returns what stages of one row have in common, as it is printed."""
    return time_text(stage.forward_s), time_text(stage.backward_s), stage.strategies, stage.lines


def _stage_row(same: list[tuple[int, StagePlan]]) -> tuple[str, ...]:
    (number, first), (last_number, last) = same[0], same[-1]
    actors = [stage.actor for _, stage in same]
    is_run = actors == list(range(actors[0], actors[0] + len(actors)))
    actor = span_text(actors[0], actors[-1]) if is_run else ", ".join(map(str, dict.fromkeys(actors)))
    name = first.name if first is last else f"{first.name} ... {last.name}"
    sizes = [stage.memory.total_bytes for _, stage in same]
    ends = list(dict.fromkeys(map(bytes_text, (min(sizes), max(sizes)))))
    return (
        span_text(number, last_number),
        shorten_cell(actor, 16),
        span_text(first.blocks[0], last.blocks[1] - 1),
        time_text(first.forward_s),
        time_text(first.backward_s),
        " to ".join(ends),
        shorten_cell(name, 40),
    )


def sharding_lines(plan: PlanData) -> list[str]:
    """Returns a table with the choice of every block on every axis; layers that recur are shown once."""
    rows = block_rows(plan)
    axes = tuple(plan.axes) if any(rows[0][0]) and len(rows[0][0]) == len(plan.axes) else ("strategy",)
    unit = "layer" if plan.fingerprint is None else "block"
    has_lines, has_parameters = any(line for _, line, _ in rows), any(paths for *_, paths in rows)
    table = [(unit, *axes, *(["parameters"] if has_parameters else []), *(["where"] if has_lines else []))]
    for fold in fold_blocks(plan):
        table += [
            (
                fold_text(fold, place),
                *(names if len(names) == len(axes) else ("/".join(names) or "-",)),
                *([shorten_cell(_paths_text(paths, fold), 36)] if has_parameters else []),
                *([line] if has_lines else []),
            )
            for place, (names, line, paths) in enumerate(rows[fold.start : fold.start + fold.period])
        ]
    return [*align_table(table), *_product_lines(plan)]


def _paths_text(paths: tuple[str, ...], fold: Fold) -> str:
    """Returns the paths of the first of the blocks that recur, the numbers of layers as stars."""
    if fold.count > 1:
        paths = tuple(map(star_numbers, paths))
    return ", ".join(dict.fromkeys(paths))


def _product_lines(plan: PlanData) -> list[str]:
    """Returns a line on the 2D products with the same slices."""
    counts: dict[tuple[int, ...], int] = {}
    for layers in plan.products.values():
        for layer in layers:
            counts[layer.slices] = counts.get(layer.slices, 0) + 1
    return [f"2D products: {count} with {', '.join(map(str, slices))} slices" for slices, count in counts.items()]


def time_by_term(times: TimeTerms) -> dict[str, float]:
    """Returns the terms of a step's time that are not 0, by their names, the largest first."""
    found = {name: getattr(times, key) for key, name in _TIME_NAMES.items() if getattr(times, key)}
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def memory_by_term(memory: MemoryTerms) -> dict[str, int]:
    """Returns the terms of a device's memory that are not 0, by their names, the largest first."""
    found = {name: getattr(memory, key) for key, name in _MEMORY_NAMES.items() if getattr(memory, key)}
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def time_lines(plan: PlanData) -> list[str]:
    """Returns a table of the step's time by term."""
    terms = time_by_term(plan.times)
    rows = [(name, time_text(value), percent_text(value / plan.time_s)) for name, value in terms.items()]
    rows = [("time of a step", time_text(plan.time_s), ""), *rows]
    return align_table(rows, right=(1, 2)) if terms else []


def memory_lines(plan: PlanData) -> list[str]:
    """Returns a table of the fullest device's memory by term."""
    terms, total = memory_by_term(plan.memory), max(plan.memory_bytes, 1)
    rows = [(name, bytes_text(value), percent_text(value / total)) for name, value in terms.items()]
    rows = [("memory of the fullest device", bytes_text(plan.memory_bytes), ""), *rows]
    return align_table(rows, right=(1, 2)) if terms else []


def baseline_lines(plan: PlanData) -> list[str]:
    """Returns a table of the usual plans beside this one, the fastest first, and what there is to say on them."""
    if not plan.baselines:
        return []
    rows = [
        ("plan", "time", "of ours", "MFU", "memory", ""),
        ("this one", time_text(plan.time_s), "1.00", _mfu_text(plan.mfu), bytes_text(plan.memory_bytes), ""),
    ]
    ordered = sorted(plan.baselines, key=lambda baseline: (baseline.time_s == math.inf, baseline.time_s))
    rows += [_baseline_row(plan, baseline) for baseline in ordered]
    remarks = [
        f"{baseline.name}: {'; '.join(filter(None, (baseline.note, baseline.source)))}"
        for baseline in ordered
        if baseline.note or baseline.source
    ]
    return [*align_table(rows, right=(1, 2, 3, 4)), *(line for text in remarks for line in wrap_prose(text))]


def _baseline_row(plan: PlanData, baseline: PlanBaseline) -> tuple[str, ...]:
    runs = math.isfinite(baseline.time_s)
    return (
        shorten_cell(baseline.name, 48),
        time_text(baseline.time_s),
        ratio_text(baseline.time_s, plan.time_s),
        _mfu_text(baseline.mfu),
        bytes_text(baseline.memory_bytes) if baseline.memory_bytes else "-",
        "does not run" if not runs else "" if baseline.fits else "does not fit",
    )


def _mfu_text(mfu: float | None) -> str:
    return "-" if mfu is None else percent_text(mfu)


def _closing_lines(plan: PlanData) -> list[str]:
    """Returns the work of the search, the provenance of prices, and the notes."""
    log = plan.log
    texts = []
    programs = f" ({log.num_programs:,} programs)" if log.num_programs else ""
    unpriced = f"{log.num_unpriced:,} without a price, " if log.num_unpriced else ""
    reasons = "bounds or heuristics" if plan.is_proven is False else "bounds"
    if log.num_seen:
        texts.append(
            f"searched {log.num_seen:,} configurations in {time_text(log.time_s)}: {log.num_pruned:,} left out by "
            f"{reasons}, {log.num_priced:,} priced{programs}, {unpriced}{log.num_simulated:,} simulated, "
            f"{log.num_measured:,} measured"
        )
    texts += [] if plan.is_proven is None else [_PROOF_TEXTS[plan.is_proven]]
    texts += [f"prices: {plan.provenance}"] if plan.provenance else []
    texts += [f"left out: {text}" for text in log.left_out] + [f"note: {note}" for note in plan.notes]
    return [line for text in texts for line in wrap_prose(text)]
