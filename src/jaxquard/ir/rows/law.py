"""Laws: how a value V of a whole batch follows from the values v_m of its M parts.

| kind  | means |
| ----- | --- |
| SAME  | V = scale * v_m for every part m: parameters, and what follows from them and from sizes |
| ROWS  | V = scale * the rows of all v_m, in blocks along a dim: V has it as (outer, M, inner), v_m as (outer, inner) |
| SUM   | V = scale * (v_1 + ... + v_M) |
| MAX   | V = the largest of v_1, ..., v_M, element by element |
| ZERO  | V and v_m are zeros |
| TOTAL | inside a loop over rows alone: a carry to which each row adds |
| MIXED | none of these is known |

SAME with scale s is a SUM with scale s / M, and ZERO is all of them. A mean over rows is a SUM with scale 1 / M.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxquard.ir.jaxpr_tools import Equation


class Kind(enum.Enum):
    """The kinds of laws."""

    SAME = "same"
    ROWS = "rows"
    SUM = "sum"
    MAX = "max"
    ZERO = "zero"
    TOTAL = "total"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cause:
    """The reason why no law is known.

    Attributes:
        equation: after which none was known.
        reason: what it does, as the end of "the loss ...".
    """

    equation: Equation | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The way in which a value of the whole batch follows from those of its parts.

    Attributes:
        dim: of ROWS.
        outer: of ROWS: the blocks in front of the parts along the dim; None if the value is constant along it, so that
            any number will do.
        order: of ROWS: which part's rows come first, second, ...; None for their own order.
        carry: of TOTAL: which carry it is.
        cause: of MIXED.
    """

    kind: Kind
    scale: float = 1.0
    dim: int = 0
    outer: int | None = 1
    order: tuple[int, ...] | None = None
    carry: int = 0
    cause: Cause | None = None

    @property
    def is_mixed(self) -> bool:
        return self.kind is Kind.MIXED

    def scaled(self, factor: float) -> "Law":
        """Returns the law of a multiple, where the factor of the whole is that much larger than those of parts."""
        return self if self.kind in (Kind.ZERO, Kind.MIXED) else replace(self, scale=self.scale * factor)

    def has_scale(self, scale: float) -> bool:
        """Returns true if V is exactly so many times as large."""
        return self.kind is Kind.ZERO or is_close(self.scale, scale)


SAME = Law(kind=Kind.SAME)
ZERO = Law(kind=Kind.ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Columns of indices, joined along a dim, each with a state of its own: a position in the batch beside a label.

    Attributes:
        columns: the state of each column, and its width.
    """

    dim: int
    columns: tuple[tuple[Any, int], ...]

    @property
    def is_mixed(self) -> bool:
        return False


def law_text(law: Law) -> str:
    """Returns a law in words: `sum x 0.25`, `rows along 0 in another order`."""
    if law.cause is not None:
        return f"mixed: {law.cause.reason}"
    words = {Kind.SAME: "same", Kind.SUM: "sum", Kind.MAX: "max", Kind.ZERO: "zeros", Kind.TOTAL: "total"}
    text = words.get(law.kind, f"rows along {law.dim}")
    if law.kind is Kind.ROWS and (law.outer or 1) > 1:
        text += f" in {law.outer} blocks"
    if law.order is not None:
        text += " in another order"
    return text if law.has_scale(1.0) else f"{text} x {law.scale:.6g}"


def is_close(one: float, other: float) -> bool:
    """Compares scales; they are ratios of sizes, which rounding barely moves."""
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other))


def rows(dim: int, *, scale: float = 1.0, outer: int | None = 1, order: tuple[int, ...] | None = None) -> Law:
    """Returns the law of rows along a dim."""
    in_order = order is None or outer is None or order == tuple(range(len(order)))
    return Law(kind=Kind.ROWS, scale=scale, dim=dim, outer=outer, order=None if in_order else order)


def constant_rows(dim: int, scale: float = 1.0) -> Law:
    """Returns the law of equal rows, of which the whole has more."""
    return Law(kind=Kind.ROWS, scale=scale, dim=dim, outer=None)


def sums(scale: float = 1.0) -> Law:
    """Returns the law of a sum over parts."""
    return Law(kind=Kind.SUM, scale=scale)


def mixed(equation: Equation | None, reason: str) -> Law:
    """Returns the law of what has none."""
    return Law(kind=Kind.MIXED, cause=Cause(equation=equation, reason=reason))


def row_dim(whole: Sequence[int], part: Sequence[int], num_parts: int) -> int | None:
    """Returns the one dim that is longer in the whole, M times; None if there is no such dim or are several."""
    if len(whole) != len(part):
        return None
    differing = [dim for dim, (size, other) in enumerate(zip(whole, part, strict=True)) if size != other]
    if len(differing) != 1 or whole[differing[0]] != num_parts * part[differing[0]]:
        return None
    return differing[0]


def place_by_index(
    whole: np.ndarray, part: np.ndarray, *, outer: int | None, inner: int, num_parts: int
) -> tuple[int, tuple[int, ...] | None] | None:
    """Finds the blocks of rows that are picked from others by positions: slices, reversals, paddings, gathers.

    Args:
        whole, part: for each row of the result, which one of the operand it is; -1 for none.
        outer, inner: blocks of the operand, and the rows of each in a part.

    Returns:
        The result's `outer` and `order`; None if there are no such blocks.
    """
    count = len(part)
    if len(whole) != num_parts * count or count == 0:
        return None
    if outer is None:
        return 1, None
    is_row = whole >= 0
    place = np.where(is_row, whole, 0)
    from_part = np.where(is_row, place // inner % num_parts, -1)
    inside = np.where(is_row, place // (inner * num_parts) * inner + place % inner, -1)
    for blocks in _divisors(count):
        shape = (blocks, num_parts, count // blocks)
        expected = np.broadcast_to(part.reshape(blocks, 1, count // blocks), shape)
        if not np.array_equal(inside.reshape(shape), expected):
            continue
        sources = from_part.reshape(shape)
        order = tuple(int(sources[:, place].max()) for place in range(num_parts))
        is_found = (sources == np.asarray(order)[None, :, None]) | (sources < 0)
        if is_found.all() and sorted(order) == list(range(num_parts)):
            return blocks, None if order == tuple(range(num_parts)) else order
    return None


def _divisors(count: int) -> list[int]:
    return [number for number in range(1, count + 1) if count % number == 0]
