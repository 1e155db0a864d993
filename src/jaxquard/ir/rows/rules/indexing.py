"""Gather and scatter: rows that are picked by an index of their own stay rows; those that are added up become a sum.

    logp[arange(B), labels]  =  gather logp [arange(B), labels]

reads row i of the batch for row i of the result, in every part as in the whole: the positions are known, so each is
looked at. A table that is read by rows of indices gives rows; its gradient, a scatter of rows into a table, is a sum.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxquard.ir.rows.known import Known, law_of
from jaxquard.ir.rows.law import (
    SAME,
    ZERO,
    Kind,
    Law,
    Pieces,
    constant_rows,
    is_close,
    place_by_index,
    row_dim,
    rows,
    sums,
)
from jaxquard.ir.rows.paired import PairedEquation, Rule, Shape, State, rules_for

_PICKS = "picks rows of the batch by indices that do not stay in a microbatch"
_ORDERS = "combines rows with rows in another order"


def _first_mixed(laws: Sequence[Law]) -> Law | None:
    return next((law for law in laws if law.is_mixed), None)


def _columns(pair: PairedEquation, state: State) -> list[State]:
    """Returns the state of every column of the indices; the vectors stand along the last dim."""
    count = pair.in_shapes(1)[0][-1]
    if isinstance(state, Pieces):
        if state.dim != len(pair.in_shapes(1)[0]) - 1:
            return [pair.mixed(_PICKS)] * count
        return [column for column, width in state.columns for _ in range(width)]
    if isinstance(state, Known) and not state.is_same:
        values = state.values()
        if values is not None:
            return [_column_of(values, place) for place in range(count)]
    return [state] * count


def _column_of(values: tuple[np.ndarray, np.ndarray], place: int) -> Known:
    pair = values[0][..., place : place + 1], values[1][..., place : place + 1]
    return Known(is_same=pair[0].shape == pair[1].shape and bool((pair[0] == pair[1]).all()), make=lambda: pair)


def _index_law(pair: PairedEquation, columns: Sequence[State], *, without: int | None = None) -> Law:
    """Returns the law of the index vectors: where their rows are, or that all parts have the same.

    Args:
        without: a column that counts rows of the operand.
    """
    shapes = pair.in_shapes(1)
    wide = (*shapes[0][:-1], 1), (*shapes[1][:-1], 1)
    found = SAME
    for place, column in enumerate(columns):
        if place == without:
            continue
        law = column if isinstance(column, Law) else _law_of_column(pair, column, wide)
        row = row_dim(*wide, pair.num_parts)
        if law.kind is Kind.ZERO and row is not None:
            law = constant_rows(row)
        if law.is_mixed or law.kind is Kind.ZERO:
            if law.is_mixed:
                return law
            continue
        if law.kind is Kind.SAME:
            if not law.has_scale(1.0):
                return pair.mixed("indexes by the number of rows")
            continue
        if law.kind is not Kind.ROWS or not law.has_scale(1.0) or law.dim == len(wide[0]) - 1:
            return pair.mixed("indexes by a sum over rows")
        if law.outer is None:
            found = law if found is SAME else found
            continue
        if found is not SAME and found.outer is not None and (found.outer, found.order) != (law.outer, law.order):
            return pair.mixed(_ORDERS)
        found = law
    return found


def _law_of_column(pair: PairedEquation, column: State, shapes: tuple[Shape, Shape]) -> Law:
    if isinstance(column, Known):
        return law_of(column, shapes, pair.num_parts, pair.whole)
    return pair.mixed(_PICKS)


def _row_positions(pair: PairedEquation, column: State, size: int) -> tuple[int, tuple[int, ...] | None] | None:
    """Finds a batch dim of the indices along which a column counts the rows of an operand.

    Args:
        size: rows of the operand in a part.

    Returns:
        The dim, and the order in which parts are picked.
    """
    values = column.values() if isinstance(column, Known) else None
    shapes = pair.in_shapes(1)
    dim = row_dim(*shapes, pair.num_parts)
    if values is None or dim is None or dim == len(shapes[0]) - 1:
        return None
    whole, part = (np.broadcast_to(v, (*s[:-1], 1)) for v, s in zip(values, shapes, strict=True))
    if ((part < 0) | (part >= size)).any() or ((whole < 0) | (whole >= size * pair.num_parts)).any():
        return None
    lines = [np.moveaxis(array, dim, -1).reshape(-1, array.shape[dim]) for array in (whole, part)]
    orders = set()
    for long, short in zip(*lines, strict=True):
        blocks = place_by_index(long, short, outer=1, inner=size, num_parts=pair.num_parts)
        if blocks is None or blocks[0] != 1:
            return None
        orders.add(blocks[1])
    return (dim, orders.pop()) if len(orders) == 1 else None


def _gather(pair: PairedEquation, states: list[State]) -> list[State]:
    operand = pair.law(0, states[0])
    if operand.is_mixed:
        return [operand]
    return [_gathered(pair, operand, _columns(pair, states[1]))]


def _gathered(pair: PairedEquation, operand: Law, columns: Sequence[State]) -> Law:
    numbers = pair.whole.params["dimension_numbers"]
    if not pair.same_params("dimension_numbers", "mode", "fill_value"):
        return pair.mixed(_PICKS)
    if _fills(pair) and not (operand.kind in (Kind.SAME, Kind.ROWS) and operand.has_scale(1.0)):
        return pair.mixed("fills a sum over rows, or a multiple, with a number")
    batch_dims = _batch_dims(pair.out_shapes()[0], numbers.offset_dims)
    if operand.kind is not Kind.ROWS:
        return _gathered_from_same(pair, operand, columns, batch_dims)
    dim = operand.dim
    if dim in numbers.operand_batching_dims:
        place = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(dim)]
        return _gathered_together(pair, operand, _index_law(pair, columns), place, batch_dims)
    if dim in numbers.start_index_map:
        counting = numbers.start_index_map.index(dim)
        taken = [pair.whole.params["slice_sizes"][dim], pair.part.params["slice_sizes"][dim]]
        sizes = [shape[dim] for shape in pair.in_shapes(0)]
        if taken != sizes:
            return _gathered_by_position(pair, operand, columns, counting, batch_dims)
    return _gathered_whole(pair, operand, _index_law(pair, columns))


def _fills(pair: PairedEquation) -> bool:
    """Returns true if what lies outside of the operand is read as a number that is neither 0 nor NaN."""
    value, dtype = pair.whole.params.get("fill_value"), pair.whole.outvars[0].aval.dtype
    is_filled = "FILL" in str(pair.whole.params["mode"])
    return is_filled and (dtype.kind in "iu" if value is None else bool(value == value and value != 0))


def _batch_dims(shape: Shape, offset_dims: Sequence[int]) -> list[int]:
    return [dim for dim in range(len(shape)) if dim not in offset_dims]


def _gathered_from_same(pair: PairedEquation, operand: Law, columns: Sequence[State], batch_dims: list[int]) -> Law:
    """A table, read by rows of indices or by the same indices in all parts."""
    index = _index_law(pair, columns)
    if index.is_mixed or not pair.same_params("slice_sizes"):
        return index if index.is_mixed else pair.mixed(_PICKS)
    if operand.kind is Kind.ZERO:
        return ZERO
    if index.kind is Kind.SAME and pair.has_same_out_shapes():
        return operand if operand.kind in (Kind.SAME, Kind.SUM, Kind.MAX) else pair.mixed(_PICKS)
    if operand.kind is not Kind.SAME or index.kind is not Kind.ROWS:
        return pair.mixed("indexes a sum over rows by rows of the batch")
    return rows(batch_dims[index.dim], scale=operand.scale, outer=index.outer, order=index.order)


def _gathered_together(pair: PairedEquation, operand: Law, index: Law, place: int, batch_dims: list[int]) -> Law:
    """Row by row: an operand and indices that have the rows as a batch."""
    if index.is_mixed:
        return index
    in_order = None in (index.outer, operand.outer) or (index.outer, index.order) == (operand.outer, operand.order)
    if index.kind is Kind.ROWS and index.dim == place and in_order:
        concrete = index if operand.outer is None else operand
        return rows(batch_dims[place], scale=operand.scale, outer=concrete.outer, order=concrete.order)
    return pair.mixed(_ORDERS)


def _gathered_by_position(
    pair: PairedEquation, operand: Law, columns: Sequence[State], counting: int, batch_dims: list[int]
) -> Law:
    """One column of the indices counts the rows of the operand."""
    found = _row_positions(pair, columns[counting], pair.in_shapes(0)[1][operand.dim])
    index = _index_law(pair, columns, without=counting)
    if index.is_mixed or found is None:
        return index if index.is_mixed else pair.mixed(_PICKS)
    dim, order = found
    has_order = index.dim == dim and index.outer in (None, 1) and (index.order, order) == (None, None)
    is_aligned = index.kind is Kind.SAME or has_order
    sizes = pair.whole.params["slice_sizes"][operand.dim], pair.part.params["slice_sizes"][operand.dim]
    if not is_aligned or operand.outer not in (None, 1) or operand.order is not None or sizes != (1, 1):
        return pair.mixed(_PICKS)
    return rows(batch_dims[dim], scale=operand.scale, outer=1, order=order)


def _gathered_whole(pair: PairedEquation, operand: Law, index: Law) -> Law:
    """The dim of the rows is taken whole, by the same indices in all parts."""
    numbers, dim = pair.whole.params["dimension_numbers"], operand.dim
    if index.is_mixed or index.kind is not Kind.SAME:
        return index if index.is_mixed else pair.mixed(_PICKS)
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [place for place in range(len(pair.in_shapes(0)[0])) if place not in gone]
    sizes = zip(pair.whole.params["slice_sizes"], pair.part.params["slice_sizes"], strict=True)
    is_known = all(one == other or place == dim for place, (one, other) in enumerate(sizes))
    if dim not in window or not is_known:
        return pair.mixed(_PICKS)
    out_dim = sorted(numbers.offset_dims)[window.index(dim)]
    return rows(out_dim, scale=operand.scale, outer=operand.outer, order=operand.order)


def _scatter(pair: PairedEquation, states: list[State]) -> list[State]:
    operand, updates = (pair.law(position, states[position]) for position in (0, 2))
    unknown = _first_mixed((operand, updates))
    if unknown is not None:
        return [unknown]
    return [_scattered(pair, operand, _columns(pair, states[1]), updates)]


def _scattered(pair: PairedEquation, operand: Law, columns: Sequence[State], updates: Law) -> Law:
    numbers = pair.whole.params["dimension_numbers"]
    if not pair.same_params("dimension_numbers", "mode"):
        return pair.mixed(_PICKS)
    dim = row_dim(*pair.in_shapes(0), pair.num_parts)
    if updates.kind is Kind.ZERO and operand.kind is Kind.ZERO:
        return ZERO
    if dim is None:
        return _scattered_to_same(pair, operand, columns, updates)
    if operand.kind not in (Kind.ROWS, Kind.ZERO) or updates.kind not in (Kind.ROWS, Kind.ZERO):
        return pair.mixed(_PICKS)
    if not _has_one_scale(pair, operand, updates):
        return pair.mixed("adds numbers that grow with the number of rows to others that do not")
    if operand.kind is Kind.ROWS and operand.dim != dim:
        return pair.mixed(_PICKS)
    place, order, outer = _find_updated_rows(pair, numbers, dim, columns, updates)
    if place is None:
        return pair.mixed(_PICKS)
    is_plain = operand.kind is Kind.ZERO or operand.outer is None or (operand.outer, operand.order) == (outer, order)
    scale = operand.scale if updates.kind is Kind.ZERO else updates.scale
    return rows(dim, scale=scale, outer=outer, order=order) if is_plain else pair.mixed(_ORDERS)


def _has_one_scale(pair: PairedEquation, operand: Law, updates: Law) -> bool:
    if Kind.ZERO in (operand.kind, updates.kind):
        return pair.name not in ("scatter-max", "scatter-min", "scatter-mul") or operand.has_scale(1.0)
    is_plain = pair.name in ("scatter", "scatter-add", "scatter_add", "scatter-sub", "scatter_sub")
    return is_close(operand.scale, updates.scale) and (is_plain or is_close(operand.scale, 1.0))


def _find_updated_rows(
    pair: PairedEquation, numbers: Any, dim: int, columns: Sequence[State], updates: Law
) -> tuple[int | None, tuple[int, ...] | None, int]:
    """Finds how rows of updates reach rows of the operand: the dim of the updates, the order and the blocks."""
    outer, order = (updates.outer or 1, updates.order) if updates.kind is Kind.ROWS else (1, None)
    update_batch = [to for to in range(len(pair.in_shapes(2)[0])) if to not in numbers.update_window_dims]
    none = None, None, 1
    if dim in numbers.operand_batching_dims:
        at = numbers.scatter_indices_batching_dims[numbers.operand_batching_dims.index(dim)]
        index = _index_law(pair, columns)
        has_rows = index.kind is Kind.ROWS and index.dim == at
        is_aligned = has_rows and (index.outer is None or (index.outer, index.order) == (outer, order))
        is_row = updates.kind is Kind.ZERO or updates.dim == update_batch[at]
        return (update_batch[at], order, outer) if is_aligned and is_row else none
    if dim in numbers.scatter_dims_to_operand_dims and dim in numbers.inserted_window_dims:
        return _find_counted_rows(pair, numbers, dim, columns, updates, update_batch)
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = [place for place in range(len(pair.in_shapes(0)[0])) if place not in gone]
    to = sorted(numbers.update_window_dims)[window.index(dim)] if dim in window else None
    index = _index_law(pair, columns)
    if to is None or index.kind is not Kind.SAME or index.is_mixed:
        return none
    sizes = [(shape[dim], updated[to]) for shape, updated in zip(pair.in_shapes(0), pair.in_shapes(2), strict=True)]
    is_row = updates.kind is Kind.ZERO or updates.dim == to
    return (to, order, outer) if is_row and all(one == other for one, other in sizes) else none


def _find_counted_rows(
    pair: PairedEquation, numbers: Any, dim: int, columns: Sequence[State], updates: Law, update_batch: list[int]
) -> tuple[int | None, tuple[int, ...] | None, int]:
    """A column of the indices counts the rows of the operand."""
    none = None, None, 1
    counting = numbers.scatter_dims_to_operand_dims.index(dim)
    found = _row_positions(pair, columns[counting], pair.in_shapes(0)[1][dim])
    index = _index_law(pair, columns, without=counting)
    if found is None or index.is_mixed or found[1] is not None:
        return none
    is_aligned = index.kind is Kind.SAME or (index.dim == found[0] and index.outer in (None, 1) and index.order is None)
    is_row = updates.kind is Kind.ZERO or (
        updates.dim == update_batch[found[0]] and updates.outer in (None, 1) and updates.order is None
    )
    return (update_batch[found[0]], None, 1) if is_aligned and is_row else none


def _scattered_to_same(pair: PairedEquation, operand: Law, columns: Sequence[State], updates: Law) -> Law:
    """A table that rows are added to, or that the same changes are made to in all parts."""
    index = _index_law(pair, columns)
    is_sum = pair.name in ("scatter-add", "scatter_add", "scatter-sub", "scatter_sub")
    if index.is_mixed:
        return index
    if index.kind is Kind.SAME and updates.kind is not Kind.ROWS:
        return _scattered_alike(pair, operand, updates, is_sum=is_sum)
    is_row = updates.kind is Kind.ROWS and _rows_of_updates(pair, updates) == index.dim
    is_aligned = index.kind is Kind.ROWS and (
        None in (index.outer, updates.outer) or (index.outer, index.order) == (updates.outer, updates.order)
    )
    if not is_sum or not is_row or not is_aligned:
        return pair.mixed("writes rows to places that rows of other microbatches may write to")
    found = sums(updates.scale)
    if operand.kind is Kind.ZERO:
        return found
    first = operand.scale / pair.num_parts if operand.kind is Kind.SAME else operand.scale
    if operand.kind in (Kind.SAME, Kind.SUM) and is_close(first, found.scale):
        return found
    return pair.mixed("adds a term without rows to a sum over rows, which each microbatch would add again")


def _rows_of_updates(pair: PairedEquation, updates: Law) -> int:
    """Returns which batch dim of the updates their rows are; -1 for one of a window."""
    numbers = pair.whole.params["dimension_numbers"]
    batch = [to for to in range(len(pair.in_shapes(2)[0])) if to not in numbers.update_window_dims]
    return batch.index(updates.dim) if updates.dim in batch else -1


def _scattered_alike(pair: PairedEquation, operand: Law, updates: Law, *, is_sum: bool) -> Law:
    others = [law for law in (operand, updates) if law.kind is not Kind.ZERO]
    kinds = {law.kind for law in others}
    if kinds == {Kind.SAME}:
        is_one = all(is_close(law.scale, others[0].scale) for law in others)
        is_known = is_one and (is_sum or pair.name == "scatter" or others[0].has_scale(1.0))
        return others[0] if is_known else pair.mixed(_PICKS)
    if kinds <= {Kind.SAME, Kind.SUM} and (is_sum or pair.name == "scatter"):
        scales = [law.scale if law.kind is Kind.SUM else law.scale / pair.num_parts for law in others]
        if all(is_close(scale, scales[0]) for scale in scales):
            return sums(scales[0])
    return pair.mixed(_PICKS)


_SCATTERS = "scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub scatter_add scatter_sub"

RULES: dict[str, Rule] = {"gather": _gather} | rules_for(_SCATTERS, _scatter)
