"""Checks that a plan agrees with itself: stages, blocks, actors, devices, microbatches, schedule, 2D products."""

import math
import unicodedata
from typing import Any

from jaxquard.errors import ScheduleError
from jaxquard.intraop.blocks.two_dimensional import COLUMNS_2D, ROWS_2D
from jaxquard.ir.codec import DataError
from jaxquard.planner.record.plan_data import PlanData, StagePlan
from jaxquard.schedules.registry import SCHEDULES, make_schedule

NO_SCHEDULE = "none"
STORAGES = ("as used", "zero 1", "zero 2", "zero 3")

# No cluster has more devices, no step more rows and no device more bytes.
_MOST_DEVICES, _MOST_ROWS, _MOST_BYTES = 2**24, 2**40, 2**60


def check_plan(plan: PlanData) -> None:
    """Checks what the types of the fields do not say.

    Raises:
        DataError: the first contradiction.
    """
    _check_numbers(plan)
    _check_devices(plan)
    _check_batch(plan)
    _check_stages(plan)
    _check_schedule(plan)
    if plan.storage not in STORAGES:
        raise DataError(f"plan.storage should be one of {', '.join(STORAGES)}, found {plan.storage!r:.80}")
    if plan.fingerprint is not None:
        _check_products(plan)


def check_texts(content: Any, *, where: str) -> None:
    """Checks that all texts of plain data can be printed: no escapes that a terminal would follow, no half characters.

    Raises:
        DataError: at the first text with such a character.
    """
    waiting = [(where, content)]
    while waiting:
        where, entry = waiting.pop()
        if isinstance(entry, str):
            odd = next((letter for letter in entry if _is_odd(letter)), None)
            if odd is not None:
                raise DataError(f"{where} has the character U+{ord(odd):04X}, which no text of a plan has")
        elif isinstance(entry, dict):
            waiting += [(f"a key of {where}", key) for key in entry]
            waiting += [(f"{where}.{key}" if key.isprintable() else where, value) for key, value in entry.items()]
        elif isinstance(entry, list):
            waiting += [(f"{where}[{number}]", value) for number, value in enumerate(entry)]


def _is_odd(letter: str) -> bool:
    return not letter.isprintable() and unicodedata.category(letter) in ("Cc", "Cs") and letter not in "\n\t"


def _check_numbers(plan: PlanData) -> None:
    """Checks that times are finite and sizes are those of something real."""
    times = {f"plan.times.{name}": getattr(plan.times, name) for name in plan.times.__dataclass_fields__}
    times |= {"plan.time_s": plan.time_s, "plan.flops": plan.flops, "plan.log.time_s": plan.log.time_s}
    times |= {} if plan.mfu is None else {"plan.mfu": plan.mfu}
    for number, stage in enumerate(plan.stages):
        where = f"plan.stages[{number}]"
        times |= {f"{where}.forward_s": stage.forward_s, f"{where}.backward_s": stage.backward_s}
        times |= {} if stage.communication_s is None else {f"{where}.communication_s": stage.communication_s}
        _check_bytes(stage.memory, where=f"{where}.memory")
    for name, value in times.items():
        if not math.isfinite(value):
            raise DataError(f"{name} should be a number, found {'null' if value == math.inf else value}")
    if plan.time_s <= 0:
        raise DataError(f"plan.time_s should be above 0, found {plan.time_s!r:.80}")
    _check_bytes(plan.memory, where="plan.memory")
    _check_range(plan.memory_limit_bytes or 0, _MOST_BYTES, where="plan.memory_limit_bytes")
    for number, baseline in enumerate(plan.baselines):
        _check_range(baseline.memory_bytes, _MOST_BYTES, where=f"plan.baselines[{number}].memory_bytes")
        if not baseline.time_s > 0:
            raise DataError(f"plan.baselines[{number}].time_s should be above 0, found {baseline.time_s!r:.80}")
        if baseline.mfu is not None and not math.isfinite(baseline.mfu):
            raise DataError(f"plan.baselines[{number}].mfu should be a number, found {baseline.mfu}")


def _check_bytes(memory: Any, *, where: str) -> None:
    for name in memory.__dataclass_fields__:
        _check_range(getattr(memory, name), _MOST_BYTES, where=f"{where}.{name}")


def _check_range(number: int, most: int, *, where: str) -> None:
    if not 0 <= number <= most:
        raise DataError(f"{where} should be from 0 to {most:,}, found {number!r:.80}")


def _check_devices(plan: PlanData) -> None:
    _check_range(plan.num_devices, _MOST_DEVICES, where="plan.num_devices")
    if not plan.axes:
        raise DataError("plan.axes should have an axis")
    num_per_actor = math.prod(plan.axes.values())
    if num_per_actor * plan.num_actors != plan.num_devices:
        mesh = " x ".join(f"{axis}={size}" for axis, size in plan.axes.items())
        raise DataError(
            f"plan.num_devices should be {plan.num_actors} actors x {num_per_actor} devices ({mesh}), found "
            f"{plan.num_devices}"[:400]
        )


def _check_batch(plan: PlanData) -> None:
    _check_range(plan.global_batch, _MOST_ROWS, where="plan.global_batch")
    if plan.num_microbatches * plan.microbatch_size != plan.global_batch:
        raise DataError(
            f"plan.global_batch should be {plan.num_microbatches} microbatches x {plan.microbatch_size} rows, found "
            f"{plan.global_batch}"
        )


def _check_stages(plan: PlanData) -> None:
    """Checks that the stages have every block once, in order, and that every actor has a stage."""
    if not plan.stages:
        raise DataError("plan.stages should have a stage")
    start = 0
    for number, stage in enumerate(plan.stages):
        _check_stage(plan, stage, start=start, where=f"plan.stages[{number}]")
        start = stage.blocks[1]
    if plan.segments and (sum(plan.segments) != start or min(plan.segments) < 1):
        raise DataError(f"plan.segments should have the {start} blocks of the stages, found {sum(plan.segments)}")
    idle = set(range(min(plan.num_actors, len(plan.stages) + 1))) - {stage.actor for stage in plan.stages}
    if idle:
        raise DataError(f"plan.stages should give every actor a stage, found none for actor {min(idle)}")


def _check_stage(plan: PlanData, stage: StagePlan, *, start: int, where: str) -> None:
    first, stop = stage.blocks
    if first != start or stop <= first:
        raise DataError(f"{where}.blocks should begin at {start} and have a block, found {list(stage.blocks)!r:.80}")
    for name in ("strategies", "lines", "parameters"):
        entries = getattr(stage, name)
        if len(entries) != stop - first and (entries or name == "strategies"):
            raise DataError(
                f"{where}.{name} should have an entry for each of {stop - first} blocks, not {len(entries)}"
            )
    if stage.actor >= plan.num_actors:
        raise DataError(f"{where}.actor should be below {plan.num_actors}, found {stage.actor}")
    for names in stage.strategies:
        if len(names) != len(plan.axes):
            raise DataError(
                f"{where}.strategies should have a choice on each of {len(plan.axes)} axes, found {names!r}"
            )


def _check_schedule(plan: PlanData) -> None:
    """Checks that the schedule is known and puts every stage on the actor that the plan names."""
    if plan.schedule == NO_SCHEDULE:
        if len(plan.stages) > 1:
            raise DataError(f"plan.schedule should be one of {', '.join(SCHEDULES)} for {len(plan.stages)} stages")
        return
    try:
        schedule = make_schedule(plan.schedule, num_stages=len(plan.stages), num_actors=plan.num_actors)
    except ScheduleError as error:
        raise DataError(f"plan.schedule: {str(error).rstrip('.')}"[:400]) from None
    for number, stage in enumerate(plan.stages):
        if stage.actor != schedule.actor_of(number):
            raise DataError(
                f"plan.stages[{number}].actor should be {schedule.actor_of(number)}, where {plan.schedule} puts it, "
                f"found {stage.actor}"
            )


def _check_products(plan: PlanData) -> None:
    """Checks that the blocks that are 2D products, and only they, have the plans of one."""
    wanted = set()
    for number, names in plan.assignment.items():
        if ROWS_2D in names or COLUMNS_2D in names:
            wanted.add(str(number))
            if names.count(ROWS_2D) != 1 or names.count(COLUMNS_2D) != 1:
                raise DataError(f"block {number} should have {ROWS_2D} and {COLUMNS_2D} on two axes, found {names!r}")
    if plan.products.keys() != wanted:
        found, missing = (", ".join(sorted(numbers)) or "none" for numbers in (plan.products.keys(), wanted))
        raise DataError(f"plan.products should be of the blocks {missing}, found {found}"[:400])
