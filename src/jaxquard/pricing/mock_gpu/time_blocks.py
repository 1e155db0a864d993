"""Times a program in blocks of runs that follow each other, as the steps of a training loop do (design decision 14).

On an accelerator the runs of a block are started without waiting, so that starting them is hidden where a training
loop hides it. The time of a block is that of one of its runs.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Blocks that confirm the minimum, and by how much of it they may differ.
_NUM_ALIKE, _ALIKE = 3, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBudget:
    """The runs of a program.

    Attributes:
        num_warmups: runs before those that count.
        num_blocks: blocks that count, at least; there are up to `max_blocks` until three agree within 2 %.
        block_s: seconds that a block takes, if `max_runs` runs take so long.
        max_runs: runs of a block, at most.
        limit_s: after so many seconds of one program there are no more blocks.
        slow_s: a program that takes longer has one block.
    """

    num_warmups: int = 2
    num_blocks: int = 4
    max_blocks: int = 12
    block_s: float = 0.1
    max_runs: int = 10
    limit_s: float = 60.0
    slow_s: float = math.inf


def time_blocks(
    run: Callable[[], Any],
    wait: Callable[[Any], None],
    *,
    budget: BlockBudget,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """Returns the seconds of a run in each block.

    Args:
        run: begins a run; each may use what the one before it gives.
        wait: waits for the end of a run.
        clock: returns seconds.
    """
    start_s = clock()

    def time_block(count: int) -> float:
        begin_s = clock()
        last = None
        for _ in range(count):
            last = run()
        wait(last)
        return (clock() - begin_s) / count

    first_s = min([time_block(1) for _ in range(max(1, budget.num_warmups))])
    count = max(1, min(budget.max_runs, int(budget.block_s / max(first_s, 1e-9))))
    times_s: list[float] = []
    while len(times_s) < budget.num_blocks or (len(times_s) < budget.max_blocks and not _is_confirmed(times_s)):
        times_s.append(time_block(count))
        if times_s[0] > budget.slow_s or clock() - start_s > budget.limit_s:
            break
    return tuple(times_s)


def _is_confirmed(times_s: list[float]) -> bool:
    nearest = sorted(times_s)[:_NUM_ALIKE]
    return len(nearest) == _NUM_ALIKE and nearest[-1] <= nearest[0] * (1 + _ALIKE)
