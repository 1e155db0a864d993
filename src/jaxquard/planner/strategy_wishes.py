"""Wishes for the sharding of blocks, by the path of a parameter or a line of code.

A strategy is the name of the dim that is sharded on every axis that is not data parallel: "columns", "contracted",
"batch 1", "scattered", "sequence"; "replicated" where the parameter is whole on every device; "experts" where experts
are sharded; "2d" for a 2D product. "rows/columns" names the choice on every axis, and * stands for any.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.errors import PlanError
from jaxquard.intraop.blocks.shard_sequence import SEQUENCE
from jaxquard.intraop.blocks.two_dimensional import COLUMNS_2D, ROWS_2D
from jaxquard.intraop.segments.block_names import BlockNames
from jaxquard.planner.record.match_names import (
    is_line,
    is_slip,
    match_line,
    match_path,
    nearest_names,
    path_prefixes,
)

STRATEGIES = (
    *("rows", "columns", "contracted", "scattered", "scattered columns", SEQUENCE, "replicated", "experts"),
    *("2d", ROWS_2D, COLUMNS_2D),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyWish:
    """A wish for the sharding of the blocks that a path or a line names.

    Attributes:
        pattern: "layers.*.mlp" or "model.py:41".
        strategy: a name, or one for each axis with "/" between.
        is_fixed: the blocks shall have it; else they shall not.
    """

    pattern: str
    strategy: str
    is_fixed: bool

    def __str__(self) -> str:
        return f"{'fix' if self.is_fixed else 'forbid'} {self.pattern}={self.strategy}"

    def means(self, names: BlockNames) -> bool:
        """Says whether a block is meant."""
        if is_line(self.pattern):
            return any(match_line(self.pattern, line) for line in names.lines)
        return any(match_path(self.pattern, path) for path in names.paths)

    def allows(self, choice: Sequence[str], names: BlockNames) -> bool:
        """Says whether a block that is meant may have this choice on the axes."""
        return _has_strategy(self.strategy, choice, names, is_fixed=self.is_fixed) == self.is_fixed


def _has_strategy(strategy: str, choice: Sequence[str], names: BlockNames, *, is_fixed: bool) -> bool:
    """Says whether a choice is of a strategy: on every axis if it is fixed, on any if it is forbidden."""
    if "/" in strategy:
        wanted = strategy.split("/")
        return len(wanted) == len(choice) and all(
            one in ("*", found) for one, found in zip(wanted, choice, strict=True)
        )
    if strategy == "2d":
        return ROWS_2D in choice
    # Rows are data parallel; of a product without parameters, as in attention, so is its first batch dim.
    data_parallel = {"rows"} if names.paths else {"rows", "batch 0"}
    if strategy in ("rows", "replicated"):
        return data_parallel.issuperset(choice)
    sharded = [name for name in choice if name == strategy or name not in data_parallel]
    is_meant = [name == strategy or (strategy == "experts" and name.startswith("batch ")) for name in sharded]
    return bool(is_meant) and (all(is_meant) if is_fixed else any(is_meant))


def read_strategy(name: str, value: Any, *, is_fixed: bool, settings: Collection[str]) -> StrategyWish:
    """Reads a wish for the blocks that a path or a line names.

    Args:
        settings: names that may have been meant instead.

    Raises:
        PlanError: if the value is no strategy.
    """
    words = [" ".join(word.split()).lower() for word in value.split("/")] if isinstance(value, str) else []
    known = (*STRATEGIES, *(["*"] if len(words) > 1 else []))
    if not words or any(word not in known and not _is_batch(word) for word in words):
        meant = next((f" Did you mean the setting {one}?" for one in settings if is_slip(name, one)), "")
        raise PlanError(
            f"{'fix' if is_fixed else 'forbid'} {name}={value!r:.80}: a sharding is one of {', '.join(STRATEGIES)}, "
            f"batch 0, batch 1 ..., or one for each axis, as rows/columns.{meant}"
        )
    return StrategyWish(pattern=name, strategy="/".join(words), is_fixed=is_fixed)


def _is_batch(word: str) -> bool:
    first, _, number = word.partition(" ")
    return first == "batch" and number.isdecimal() and len(number) < 3


def check_agreement(found: Sequence[StrategyWish], where: str) -> None:
    """Refuses wishes for one block of which one fixes what another forbids, or fixes another strategy."""
    for place, wish in enumerate(found):
        for other in found[place + 1 :]:
            is_same = wish.strategy == other.strategy
            both_fixed = wish.is_fixed and other.is_fixed and not is_same and "/" not in wish.strategy + other.strategy
            if both_fixed or (is_same and wish.is_fixed != other.is_fixed):
                raise PlanError(f"{wish} and {other} contradict each other on {where}. Leave one of them out.")


def matches_nothing(wish: StrategyWish, names: Mapping[int, BlockNames]) -> str:
    """Returns the message on a wish that names no block."""
    for number, one in names.items():
        small = next((path for path in one.more_paths if match_path(wish.pattern, path)), None)
        if small is not None and not is_line(wish.pattern):
            return (
                f"{wish}: the product of {small} is too small to be sharded by itself, and follows block "
                f"{number}{names_in_words(one)}. Name that one."
            )
    if is_line(wish.pattern):
        known = [line for one in names.values() for line in one.lines]
        what = "no product or look-up stands on that line"
    else:
        known = path_prefixes(path for one in names.values() for path in one.paths)
        what = "no parameter of a product or look-up has such a path"
    near = ", ".join(nearest_names(wish.pattern, known)) or "none"
    return f"{wish}: {what}. The nearest are {near}."


def names_in_words(names: BlockNames) -> str:
    """Returns the first line and path of a block, to name it in errors."""
    words = [*names.lines[:1], *names.paths[:1]]
    return f" ({', '.join(words)})" if words else ""
