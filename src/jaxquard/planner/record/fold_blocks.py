"""Blocks of a plan that recur: equal layers are shown once, and found by their numbers."""

from collections.abc import Hashable, Sequence

from jaxquard.intraop.segments.fold_repeats import Fold, fold_repeats, star_numbers
from jaxquard.planner.record.plan_data import PlanData


def fold_blocks(plan: PlanData) -> list[Fold]:
    """Returns the folds of a plan's blocks, alike in strategy, line and parameters, whatever their layer."""
    rows = block_rows(plan)
    return fold_repeats([(names, line, tuple(map(star_numbers, paths))) for names, line, paths in rows])


def block_rows(plan: PlanData) -> list[tuple[tuple[str, ...], str, tuple[str, ...]]]:
    """Returns for each block its strategy, its line and the paths of its parameters."""
    rows = []
    for stage in plan.stages:
        count = len(stage.strategies)
        lines = stage.lines or ("",) * count
        rows += list(zip(stage.strategies, lines, stage.parameters or ((),) * count, strict=True))
    return rows


def find_layers(plan: PlanData) -> dict[int, list[int]]:
    """Returns the blocks of each layer, by its number; nothing where no layers are found.

    The blocks of a model by name are its layers. Of a traced step, the paths of parameters have the number of a layer;
    products without parameters are of the layer around them. Without paths, layers are the runs of blocks that recur:
    of all of them, the one with the most blocks.
    """
    rows = block_rows(plan)
    if plan.fingerprint is None:
        return {number: [number] for number in range(len(rows))}
    numbers = _fill_gaps([_layer_number(paths) for *_, paths in rows])
    if not any(number is not None for number in numbers):
        return _recurring_layers([(names, line) for names, line, _ in rows])
    layers: dict[int, list[int]] = {}
    for block, number in enumerate(numbers):
        if number is not None:
            layers.setdefault(number, []).append(block)
    return layers


def _layer_number(paths: Sequence[str]) -> int | None:
    """Returns the first number in paths: 3 for `layers.3.mlp.up`, and for `layers.up.3` of stacked weights."""
    words = (word for path in paths for word in path.split("."))
    return next((int(word) for word in words if word.isdecimal() and len(word) < 10), None)


def _fill_gaps(numbers: Sequence[int | None]) -> list[int | None]:
    """Gives blocks without a number that of the blocks before and after them, if it is the same."""
    filled, last = list(numbers), 0
    for place, number in enumerate(numbers):
        if number is None:
            continue
        if numbers[last] == number:
            filled[last:place] = [number] * (place - last)
        last = place
    return filled


def _recurring_layers(items: Sequence[Hashable]) -> dict[int, list[int]]:
    longest = max(fold_repeats(items), key=lambda fold: fold.count * fold.period if fold.count > 1 else 0)
    starts = range(longest.start, longest.stop, longest.period) if longest.count > 1 else ()
    return {number: list(range(start, start + longest.period)) for number, start in enumerate(starts)}
