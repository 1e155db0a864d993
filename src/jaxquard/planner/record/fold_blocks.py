"""Blocks that recur, folded: equal layers are shown once.

    blocks    A B C B C B C D
    folds     A, (B C) x 3, D

A fold's blocks are alike in what the caller compares, such as strategy and line.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from jaxquard.planner.record.plan_data import PlanData

# A layer of more blocks than these is shown block by block.
_LONGEST_LAYER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A run of items that recurs.

    Attributes:
        start: its first item.
        period: the number of items until it recurs.
        count: the number of times that it stands there.
    """

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """The item after its last."""
        return self.start + self.period * self.count


def fold_repeats(items: Sequence[Hashable]) -> list[Fold]:
    """Returns folds that have every item once, in order: at each place the one that has the most items."""
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(item, len(numbers)) for item in items]
    # lengths[period][place]: the number of items from a place on that equal the one a period later.
    longest = min(_LONGEST_LAYER, len(keys) // 2)
    lengths = [[0] * (len(keys) + 1) for _ in range(longest + 1)]
    for period in range(1, longest + 1):
        run = lengths[period]
        for place in range(len(keys) - period - 1, -1, -1):
            run[place] = run[place + 1] + 1 if keys[place] == keys[place + period] else 0
    folds, start = [], 0
    while start < len(keys):
        fold = _best_fold(start, [run[start] for run in lengths])
        folds.append(fold)
        start = fold.stop
    return folds


def _best_fold(start: int, runs: Sequence[int]) -> Fold:
    best = Fold(start=start, period=1, count=1)
    for period in range(1, len(runs)):
        count = runs[period] // period + 1
        if count > 1 and count * period > best.count * best.period:
            best = Fold(start=start, period=period, count=count)
    return best


def fold_blocks(plan: PlanData) -> list[Fold]:
    """Returns the folds of a plan's blocks, alike in strategy and line."""
    return fold_repeats([(names, line) for names, line, _ in block_rows(plan)])


def block_rows(plan: PlanData) -> list[tuple[tuple[str, ...], str, tuple[str, ...]]]:
    """Returns for each block its strategy, its line and the paths of its parameters."""
    rows = []
    for stage in plan.stages:
        count = len(stage.strategies)
        lines = stage.lines or ("",) * count
        rows += list(zip(stage.strategies, lines, stage.parameters or ((),) * count, strict=True))
    return rows


def find_layers(plan: PlanData) -> Fold | None:
    """Returns the layers of a step: of all runs of blocks that recur, the one with the most blocks; None without any.

    Blocks are alike by their lines where the plan has them, whatever their strategies; else by their strategies. The
    blocks of a model by name are its layers.
    """
    rows = block_rows(plan)
    if plan.fingerprint is None:
        return Fold(start=0, period=1, count=len(rows))
    has_lines = all(stage.lines for stage in plan.stages)
    folds = fold_repeats([line if has_lines else names for names, line, _ in rows])
    longest = max(folds, key=lambda fold: fold.count * fold.period if fold.count > 1 else 0)
    return longest if longest.count > 1 else None
