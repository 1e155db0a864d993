"""Operations that move elements: reshapes, transposes, slices, and arrays joined from others.

Blocks of rows travel with them. A reshape keeps them where the memory in front of the parts stays in front; a slice, a
reversal or a padding of the dim of the rows is looked at position by position.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxquard.ir.rows.known import Known
from jaxquard.ir.rows.law import ZERO, Kind, Law, Pieces, is_close, place_by_index, rows
from jaxquard.ir.rows.paired import PairedEquation, Rule, Shape, State, of_laws
from jaxquard.ir.rows.rules.elementwise import add_laws, find_frame

_PICKS = "picks rows of the batch by their position"
_MERGES = "groups rows in a way that tears microbatches apart, as reshape(8, -1) does"
_MAX_KEPT = (Kind.SAME, Kind.SUM, Kind.MAX, Kind.ZERO)


def moved(pair: PairedEquation, law: Law) -> Law | None:
    """Returns the law of elements that are moved or repeated in the same way everywhere; None for rows."""
    if law.kind is Kind.ZERO:
        return ZERO
    if pair.has_same_out_shapes():
        return law if law.kind in _MAX_KEPT else None
    return None


def _broadcast_in_dim(pair: PairedEquation, laws: list[Law]) -> Law:
    law, placed = laws[0], pair.whole.params["broadcast_dimensions"]
    found = moved(pair, law)
    if found is not None:
        return found
    dim = pair.out_row_dim()
    if dim is None or tuple(placed) != tuple(pair.part.params["broadcast_dimensions"]):
        return pair.mixed("pairs each row of the batch with all others")
    if law.kind is Kind.SAME:
        # What is repeated has the same size in both, so the rows are new.
        return rows(dim, scale=law.scale, outer=None)
    if law.kind is Kind.ROWS and int(placed[law.dim]) == dim:
        return rows(dim, scale=law.scale, outer=law.outer, order=law.order)
    return pair.mixed("combines each row with a sum over rows")


def _reshape(pair: PairedEquation, laws: list[Law]) -> Law:
    (law, *_) = laws
    if pair.whole.params.get("dimensions") is not None:
        return pair.mixed("reshapes in another order of dims")
    found = moved(pair, law)
    return found if found is not None else reshape_rows(pair, law, pair.in_shapes(0)[1])


def reshape_rows(pair: PairedEquation, law: Law, shape: Shape) -> Law:
    """Returns where rows are after a reshape of a part of this shape."""
    dim = pair.out_row_dim()
    if law.kind is not Kind.ROWS or dim is None:
        return pair.mixed(_MERGES)
    part = pair.out_shapes()[1]
    before, after = math.prod(shape[: law.dim]), math.prod(part[:dim])
    if law.outer is None and before == after and shape[law.dim] == part[dim]:
        return rows(dim, scale=law.scale, outer=None)
    in_front = before * (law.outer or 1)
    blocks = in_front // after if after else 0
    if not blocks or in_front % after or part[dim] % blocks:
        return pair.mixed(_MERGES)
    return rows(dim, scale=law.scale, outer=blocks, order=law.order)


def _transpose(pair: PairedEquation, laws: list[Law]) -> Law:
    law, permutation = laws[0], pair.whole.params["permutation"]
    if law.kind is not Kind.ROWS:
        return law
    return rows(list(permutation).index(law.dim), scale=law.scale, outer=law.outer, order=law.order)


def _squeeze(pair: PairedEquation, laws: list[Law]) -> Law:
    law = laws[0]
    if law.kind is not Kind.ROWS:
        found = moved(pair, law)
        return found if found is not None else pair.mixed(_PICKS)
    gone = sorted(dim % len(pair.in_shapes(0)[0]) for dim in pair.whole.params["dimensions"])
    if law.dim in gone or not pair.same_params():
        return pair.mixed(_PICKS)
    return rows(law.dim - sum(dim < law.dim for dim in gone), scale=law.scale, outer=law.outer, order=law.order)


def pick_rows(
    pair: PairedEquation, law: Law, whole: np.ndarray, part: np.ndarray, *, size: int, dim: int | None = None
) -> Law:
    """Returns the law of rows that are picked from others by their positions.

    Args:
        whole, part: the positions; -1 where nothing is picked.
        size: of the operand's dim, in a part.
        dim: of the result; by default the operand's.
    """
    blocks = place_by_index(whole, part, outer=law.outer, inner=size // (law.outer or 1), num_parts=pair.num_parts)
    if blocks is None:
        return pair.mixed(_PICKS)
    outer, picked = blocks
    if law.outer is None:
        return rows(law.dim if dim is None else dim, scale=law.scale, outer=None)
    order = picked if law.order is None else law.order if picked is None else tuple(law.order[one] for one in picked)
    return rows(law.dim if dim is None else dim, scale=law.scale, outer=outer, order=order)


def _along(pair: PairedEquation, law: Law, positions: Callable[[Any, int], np.ndarray], untouched: bool) -> Law:
    """Returns the law of an operand that is picked from along each dim.

    Args:
        positions: of an equation and a dim: which elements it takes.
        untouched: what it takes of dims without rows is the same in both.
    """
    found = moved(pair, law)
    if found is not None:
        return found if untouched or law.kind is Kind.ZERO else pair.mixed(_PICKS)
    if law.kind is not Kind.ROWS or not untouched:
        return pair.mixed(_PICKS)
    if pair.out_row_dim() != law.dim:
        return pair.mixed(_PICKS)
    whole, part = positions(pair.whole, law.dim), positions(pair.part, law.dim)
    return pick_rows(pair, law, whole, part, size=pair.in_shapes(0)[1][law.dim])


def _same_elsewhere(pair: PairedEquation, law: Law, *names: str) -> bool:
    """Returns true if parameters that have a value for each dim are equal but for the dim of the rows."""
    for name in names:
        one, other = pair.whole.params[name], pair.part.params[name]
        if one is None and other is None:
            continue
        rank = len(pair.in_shapes(0)[0])
        values = zip(one or (1,) * rank, other or (1,) * rank, strict=True)
        is_rows = law.kind is Kind.ROWS
        if any(left != right and not (is_rows and dim == law.dim) for dim, (left, right) in enumerate(values)):
            return False
    return True


def _slice(pair: PairedEquation, laws: list[Law]) -> Law:
    def positions(equation: Any, dim: int) -> np.ndarray:
        strides = equation.params["strides"] or (1,) * len(equation.params["start_indices"])
        return np.arange(equation.params["start_indices"][dim], equation.params["limit_indices"][dim], strides[dim])

    return _along(pair, laws[0], positions, _same_elsewhere(pair, laws[0], "start_indices", "limit_indices", "strides"))


def _rev(pair: PairedEquation, laws: list[Law]) -> Law:
    def positions(equation: Any, dim: int) -> np.ndarray:
        forward = np.arange(equation.invars[0].aval.shape[dim])
        return forward[::-1] if dim in equation.params["dimensions"] else forward

    return _along(pair, laws[0], positions, pair.same_params())


def _pad(pair: PairedEquation, laws: list[Law]) -> Law:
    law, filling = laws

    def positions(equation: Any, dim: int) -> np.ndarray:
        low, high, inside = equation.params["padding_config"][dim]
        size = equation.invars[0].aval.shape[dim]
        places = np.full(max(0, (size - 1) * (inside + 1) + 1), -1)
        places[:: inside + 1] = np.arange(size)
        wide = np.concatenate([np.full(max(0, low), -1), places, np.full(max(0, high), -1)])
        return wide[max(0, -low) : len(wide) - max(0, -high)]

    is_filled = filling.kind is Kind.ZERO or (
        filling.kind is Kind.SAME and law.kind is not Kind.SUM and is_close(filling.scale, law.scale)
    )
    if not is_filled:
        return pair.mixed("pads with numbers that grow with the rows")
    if law.kind is Kind.ZERO:
        return law if filling.kind is Kind.ZERO else pair.mixed(_PICKS)
    if law.kind is Kind.ROWS and law.outer is None:
        law = rows(law.dim, scale=law.scale)
    if law.kind not in (Kind.SAME, Kind.SUM, Kind.ROWS):
        return pair.mixed(_PICKS)
    return _along(pair, law, positions, _same_elsewhere(pair, law, "padding_config"))


def _dynamic_slice(pair: PairedEquation, laws: list[Law]) -> Law:
    law, *starts = laws
    if not all(start.kind in (Kind.SAME, Kind.ZERO) and start.has_scale(1.0) for start in starts):
        return pair.mixed(_PICKS)
    if law.kind is Kind.ZERO:
        return law
    if law.kind is not Kind.ROWS:
        return law if pair.same_params() else pair.mixed(_PICKS)
    is_whole = all(taken == had for taken, had in zip(_row_sizes(pair, law, 0), _out_sizes(pair, law), strict=True))
    if not is_whole or not _same_elsewhere(pair, law, "slice_sizes"):
        return pair.mixed(_PICKS)
    return law


def _row_sizes(pair: PairedEquation, law: Law, position: int) -> list[int]:
    return [shape[law.dim] for shape in pair.in_shapes(position)]


def _out_sizes(pair: PairedEquation, law: Law) -> list[int]:
    return [shape[law.dim] for shape in pair.out_shapes()]


def _dynamic_update_slice(pair: PairedEquation, laws: list[Law]) -> Law:
    operand, update, *starts = laws
    if not all(start.kind in (Kind.SAME, Kind.ZERO) and start.has_scale(1.0) for start in starts):
        return pair.mixed(_PICKS)
    filled = add_laws(pair, [operand, update])
    if filled.kind is Kind.ROWS and _row_sizes(pair, filled, 1) != _out_sizes(pair, filled):
        return pair.mixed(_PICKS)
    return filled


def _concatenate(pair: PairedEquation, states: list[State]) -> list[State]:
    dim = pair.whole.params["dimension"]
    laws = pair.laws(states)
    if any(law.is_mixed for law in laws):
        is_last = dim == len(pair.out_shapes()[0]) - 1
        if pair.whole.outvars[0].aval.dtype.kind == "i" and is_last and pair.out_row_dim() not in (None, dim):
            widths = [pair.in_shapes(position)[0][dim] for position in range(len(states))]
            return [Pieces(dim=dim, columns=tuple(zip(states, widths, strict=True)))]
        return [next(law for law in laws if law.is_mixed)]
    if pair.has_same_out_shapes() or pair.out_row_dim() != dim:
        return [add_laws(pair, laws)]
    return [_join_rows(pair, laws, dim)]


def _tile(pair: PairedEquation, laws: list[Law]) -> Law:
    """An array several times along its dims; one that all rows share, once for each row."""
    law, dim = laws[0], pair.out_row_dim()
    if law.kind is not Kind.ROWS:
        found = moved(pair, law)
        if found is not None:
            return found if pair.same_params() else pair.mixed(_PICKS)
        is_row = dim is not None and law.kind is Kind.SAME
        return rows(dim, scale=law.scale) if is_row and dim is not None else pair.mixed(_PICKS)
    is_kept = pair.same_params() and pair.whole.params["reps"][law.dim] == 1
    return law if is_kept else pair.mixed(_PICKS)


def _stack(pair: PairedEquation, laws: list[Law]) -> Law:
    """Arrays side by side along a new dim."""
    axis = pair.whole.params["axis"]
    found = add_laws(pair, [_behind(law, axis) for law in laws])
    return found if found.is_mixed or pair.same_params() else pair.mixed(_MERGES)


def _unstack(pair: PairedEquation, laws: list[Law]) -> Law:
    law, axis = laws[0], pair.whole.params["axis"]
    if law.kind is not Kind.ROWS:
        return law
    if law.dim == axis or not pair.same_params():
        return pair.mixed(_PICKS)
    return rows(law.dim - (law.dim > axis), scale=law.scale, outer=law.outer, order=law.order)


def _behind(law: Law, axis: int) -> Law:
    """Returns the law where a dim comes in at `axis`."""
    if law.kind is not Kind.ROWS or law.dim < axis:
        return law
    return rows(law.dim + 1, scale=law.scale, outer=law.outer, order=law.order)


def _join_rows(pair: PairedEquation, laws: Sequence[Law], dim: int) -> Law:
    """Returns the law of rows behind other rows: blocks in front of the parts."""
    concrete = [law for law in laws if law.kind is Kind.ROWS and law.outer is not None]
    sizes = [pair.in_shapes(position)[1][dim] for position in range(len(laws))]
    others = [law for law in laws if law.kind is not Kind.ZERO]
    if any(law.kind is not Kind.ROWS or law.dim != dim for law in others) or not all(
        is_close(law.scale, others[0].scale) and law.order in (None, others[0].order) for law in others
    ):
        return pair.mixed("joins rows of the batch with an array that has none")
    if len({law.order for law in concrete}) > 1:
        return pair.mixed(_PICKS)
    inner = {size // (law.outer or 1) for law, size in zip(laws, sizes, strict=True) if law in concrete}
    inner = inner or {math.gcd(*sizes)}
    (rows_inside, *more) = inner
    if more or any(size % rows_inside for size in sizes):
        return pair.mixed(_MERGES)
    if not others:
        return ZERO
    order = concrete[0].order if concrete else None
    return rows(dim, scale=others[0].scale, outer=sum(sizes) // rows_inside, order=order)


def _split(pair: PairedEquation, states: list[State]) -> list[State]:
    law, dim = pair.law(0, states[0]), pair.whole.params["axis"]
    if law.is_mixed or law.kind in (Kind.ZERO, Kind.SAME, Kind.SUM, Kind.MAX):
        is_known = law.is_mixed or law.kind is Kind.ZERO or pair.same_params("sizes", "axis")
        return [law if is_known else pair.mixed(_PICKS)] * len(pair.whole.outvars)
    if law.kind is not Kind.ROWS or law.dim != dim:
        is_known = law.kind is Kind.ROWS and pair.same_params("sizes", "axis")
        return [law if is_known else pair.mixed(_PICKS)] * len(pair.whole.outvars)
    found: list[State] = []
    starts = [0, 0]
    for sizes in zip(pair.whole.params["sizes"], pair.part.params["sizes"], strict=True):
        whole, part = (np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True))
        found.append(pick_rows(pair, law, whole, part, size=pair.in_shapes(0)[1][dim]))
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    return found


def _iota(pair: PairedEquation, states: list[State]) -> list[State]:
    """Reached where the positions are too many to look at: rows do not count those of other dims."""
    dim = pair.out_row_dim()
    if dim is None or dim == pair.whole.params["dimension"]:
        return [Known(is_same=pair.has_same_out_shapes())]
    return [rows(dim, outer=None)]


def _stack_parts(pair: PairedEquation, laws: list[Law]) -> Law:
    """Layers of a stack, apart or joined: the rows are elsewhere."""
    frame = find_frame(pair, laws)
    return add_laws(pair, laws) if frame.kind in (Kind.SAME, Kind.SUM) else pair.mixed(_PICKS)


RULES: dict[str, Rule] = {
    "broadcast_in_dim": of_laws(_broadcast_in_dim),
    "reshape": of_laws(_reshape),
    "transpose": of_laws(_transpose),
    "squeeze": of_laws(_squeeze),
    "slice": of_laws(_slice),
    "rev": of_laws(_rev),
    "pad": of_laws(_pad),
    "dynamic_slice": of_laws(_dynamic_slice),
    "dynamic_update_slice": of_laws(_dynamic_update_slice),
    "concatenate": _concatenate,
    "stack": of_laws(_stack),
    "tile": of_laws(_tile),
    "unstack": of_laws(_unstack),
    "split": _split,
    "iota": _iota,
    "join_stack": of_laws(_stack_parts),
    "split_stack": of_laws(_stack_parts),
}
