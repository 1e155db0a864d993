"""Runs of items that recur, folded: equal layers are shown once.

    items    A B C B C B C D
    folds    A, (B C) x 3, D

Items of a fold are alike in what the caller compares, such as strategy and line.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

_NUMBERED = re.compile(r"_\d+$")
# A run of more items than these is shown item by item.
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


def star_numbers(path: str, separator: str = ".") -> str:
    """Returns a path with the numbers of layers as stars: `layers.*.mlp.up`, `Block_*.Dense_0.kernel`."""
    words = ["*" if word.isdecimal() else word for word in path.split(separator)]
    place = next((place for place, word in enumerate(words) if _NUMBERED.search(word)), None)
    if place is not None and "*" not in words[:place]:
        words[place] = _NUMBERED.sub("_*", words[place])
    return separator.join(words)


def span_text(first: int, last: int) -> str:
    """Returns `3` or `3-7`."""
    return str(first) if first == last else f"{first}-{last}"


def fold_text(fold: Fold, place: int) -> str:
    """Returns `0`, `1-24` for one that stands 24 times in a row, or `3, 9, ... 141` for one of a layer of six."""
    first = fold.start + place
    if fold.count == 1:
        return str(first)
    last = first + fold.period * (fold.count - 1)
    if fold.period == 1:
        return span_text(first, last)
    middle = "" if fold.count == 2 else " ..." if fold.count > 3 else f" {first + fold.period},"
    second = f" {first + fold.period}," if fold.count > 3 else ""
    return f"{first},{second}{middle} {last}"
