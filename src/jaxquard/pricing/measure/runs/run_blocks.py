"""Runs programs as training loops: many steps of one in a row, then of the next, and again.

Programs that run in turns find the caches full of the others' weights, which no training loop does: four plans of a
decoder took 62 to 78 ms a step in turns, and 29 to 35 ms in blocks of ten. The first steps of a block still find them
so, and do not count. Several blocks a program, so that a machine that is slow for a while is slow for all.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from jaxquard.pricing.end_of_time import OutOfTimeError
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.measure.runs.watched_run import WatchedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBudget:
    """The steps of each program.

    Attributes:
        num_blocks: how often each program has its turn.
        num_steps: steps of a block that count.
        num_warmups: steps of a block before those.
        block_s: a block of a slow program has fewer steps, so that it takes no longer; one of each at least.
        slow_factor: a program so many times as slow as the fastest has one block.
        limit_s: after so many seconds a step counts as stalled.
        end_s: when no block begins any more, by `time.monotonic`.
    """

    num_blocks: int = 3
    num_steps: int = 10
    num_warmups: int = 2
    block_s: float = 5.0
    slow_factor: float = 2.5
    limit_s: float = 120.0
    end_s: float = math.inf


def run_blocks(
    timed_programs: dict[int, TimedProgram],
    *,
    budget: LoopBudget,
    watch: WatchedRun,
    on_error: Callable[[int, Exception], None],
    on_block: Callable[[int, int], None] = lambda done, most: None,
) -> None:
    """Runs all; their series have the steps that count.

    Args:
        timed_programs: `on_error` takes what fails out of it.
        on_block: called with the number of blocks that are done, and of all.
    """
    best_s = math.inf
    total = budget.num_blocks * len(timed_programs)
    for block in range(budget.num_blocks):
        for turn, (number, timed) in enumerate(list(timed_programs.items())):
            on_block(block * len(timed_programs) + turn, total)
            if timed.was_stopped_early:
                continue
            try:
                if time.monotonic() >= budget.end_s:
                    if not timed.times_s:
                        raise OutOfTimeError
                    continue
                _run_block(timed, budget, watch)
            except Exception as error:
                on_error(number, error)
                continue
            best_s = min(best_s, min(timed.times_s))
            timed.series.was_stopped_early = min(timed.times_s) > budget.slow_factor * best_s


def _run_block(timed: TimedProgram, budget: LoopBudget, watch: WatchedRun) -> None:
    first_s = watch.run(timed.run_step, limit_s=budget.limit_s)
    affordable = int(budget.block_s / first_s) if first_s > 0 else budget.num_steps
    num_steps = max(1, min(budget.num_steps, affordable))
    for _ in range(min(budget.num_warmups - 1, affordable)):
        watch.run(timed.run_step, limit_s=budget.limit_s)
    timed.times_s.extend(watch.run(timed.run_step, limit_s=budget.limit_s) for _ in range(num_steps))
