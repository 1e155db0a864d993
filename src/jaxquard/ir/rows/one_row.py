"""Parts of one row: JAX writes some operations in another way where a dim has the size 1.

    whole:  b:f32[32,5] = broadcast_in_dim a:f32[1,5]       part:  a itself
    whole:  b:f32[32] = reduce_sum[axes=(1,)] a:f32[32,1]   part:  b:f32[] = reduce_sum[axes=(0, 1)] a:f32[1,1]

What the whole's operation makes of the part's operands differs from what the part has by dims of size 1 alone. So the
functions here return the equation that JAX would have written, and a check that the one it wrote is the same.
"""

import math
from collections.abc import Sequence
from typing import Any

from jaxquard.ir.jaxpr_tools import Equation, is_var, new_var
from jaxquard.ir.rows.rules import elementwise

_RESHAPES = frozenset({"broadcast_in_dim", "reduce_sum", "reshape", "squeeze"})
_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"})


def longer_dims(shape: Sequence[int]) -> list[int]:
    """Returns the sizes that are not 1."""
    return [size for size in shape if size != 1]


def adds_dims_of_one(part: Equation) -> bool:
    """Returns true for an equation that only adds or drops dims of size 1."""
    if part.primitive.name not in _RESHAPES or len(part.invars) != 1 or not is_var(part.invars[0]):
        return False
    return longer_dims(part.invars[0].aval.shape) == longer_dims(part.outvars[0].aval.shape)


def write_left_out(whole: Equation, twin: Any, num_parts: int) -> Equation | None:
    """Returns the equation that JAX left out of the part, as one that only adds or drops dims of size 1.

    Args:
        twin: what stands in the part for the equation's operand.
    """
    name, params = whole.primitive.name, dict(whole.params)
    if name not in _RESHAPES or len(whole.invars) != 1 or not is_var(twin):
        return None
    had, shape = twin.aval.shape, list(whole.outvars[0].aval.shape)
    if name == "broadcast_in_dim":
        placed = params["broadcast_dimensions"]
        for dim, size in enumerate(shape):
            shape[dim] = had[placed.index(dim)] if dim in placed else 1
            if shape[dim] != size and size != num_parts * shape[dim]:
                return None
        params["shape"] = tuple(shape)
    elif name == "reduce_sum":
        shape = [size for dim, size in enumerate(had) if dim not in params["axes"]]
    else:
        dim = next((dim for dim, size in enumerate(shape) if size == num_parts), None)
        if math.prod(had) != math.prod(shape):
            if dim is None:
                return None
            shape[dim] = 1
        if name == "reshape":
            params["new_sizes"] = tuple(shape)
    if longer_dims(shape) != longer_dims(had):
        return None
    out = new_var(whole.outvars[0].aval.update(shape=tuple(shape)))
    return whole.replace(invars=[twin], outvars=[out], params=params)


def may_drop_dims(name: str) -> bool:
    """Returns true for operations whose operands may lack dims of size 1."""
    return name in ("gather", "dot_general", "transpose") or name.startswith("scatter") or name in elementwise.RULES


def write_as_whole(whole: Equation, part: Equation, twins: Sequence[Any], num_parts: int) -> Equation:
    """Returns the part's equation as the whole has it, with operands and results of its own, if both compute the same.

    Otherwise it returns the part's equation.

    Args:
        twins: what stands in the part for the whole's operands.
    """
    name = whole.primitive.name
    if name in _REDUCTIONS and whole.params["axes"] != part.params["axes"]:
        shape = part.invars[0].aval.shape
        changed = set(whole.params["axes"]) ^ set(part.params["axes"])
        if all(shape[dim] == 1 for dim in changed):
            kept = tuple(size for dim, size in enumerate(shape) if dim not in whole.params["axes"])
            return _written(part, part.invars, kept, {**part.params, "axes": whole.params["axes"]})
    shapes = whole.outvars[0].aval.shape, part.outvars[0].aval.shape
    if name == "reshape" and len(shapes[0]) != len(shapes[1]):
        shape = _shrink(*shapes, num_parts)
        return part if shape is None else _written(part, part.invars, shape, {**part.params, "new_sizes": shape})
    if name in elementwise.RULES or name == "transpose":
        return _write_elements(whole, part, twins)
    if may_drop_dims(name) and whole.params["dimension_numbers"] != part.params["dimension_numbers"]:
        return _write_dims(whole, part, twins, num_parts)
    return part


def _write_elements(whole: Equation, part: Equation, twins: Sequence[Any]) -> Equation:
    """The same numbers, one by one, or in another order."""
    shapes = {twin.aval.shape for twin in twins if twin.aval.shape}
    if len(whole.outvars) != 1 or len(shapes) != 1 or shapes == {part.invars[0].aval.shape}:
        return part
    (shape,) = shapes
    had, params = part.invars[0].aval.shape, dict(part.params)
    if whole.primitive.name == "transpose":
        order = whole.params["permutation"]
        if _long_order(order, shape) != _long_order(part.params["permutation"], had):
            return part
        shape, params = tuple(shape[dim] for dim in order), {**params, "permutation": order}
    if longer_dims(shape) != longer_dims(part.outvars[0].aval.shape):
        return part
    invars = [new_var(twin.aval) if is_var(twin) else twin for twin in twins]
    return _written(part, invars, shape, params)


def _long_order(permutation: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Returns the order of the dims that are not of size 1, counted among themselves."""
    long = [dim for dim, size in enumerate(shape) if size != 1]
    return [long.index(dim) for dim in permutation if dim in long]


def _written(part: Equation, invars: Sequence[Any], shape: tuple[int, ...], params: dict[str, Any]) -> Equation:
    out = new_var(part.outvars[0].aval.update(shape=shape))
    return part.replace(invars=list(invars), outvars=[out], params=params)


def _write_dims(whole: Equation, part: Equation, twins: Sequence[Any], num_parts: int) -> Equation:
    """Batch dims of size 1 are left out in a part, or are read as others are."""
    shape = _shrink(whole.outvars[0].aval.shape, part.outvars[0].aval.shape, num_parts)
    if shape is None or not all(map(is_var, twins)):
        return part
    params = {**part.params, "dimension_numbers": whole.params["dimension_numbers"]}
    if "slice_sizes" in params:
        params["slice_sizes"] = whole.params["slice_sizes"]
    invars = [new_var(twin.aval) for twin in twins]
    written = _written(part, invars, shape, params)
    key = _product_key if whole.primitive.name == "dot_general" else _index_key
    return written if key(written) == key(part) else part


def _shrink(whole: Sequence[int], part: Sequence[int], num_parts: int) -> tuple[int, ...] | None:
    """Returns the shape of the whole on one row; it differs from the part's by dims of size 1."""
    for dim in (dim for dim, size in enumerate(whole) if size == num_parts):
        shape = tuple(1 if place == dim else size for place, size in enumerate(whole))
        if longer_dims(shape) == longer_dims(part):
            return shape
    return None


def _product_key(equation: Equation) -> Any:
    """Returns what a product multiplies and contracts, dims of size 1 aside."""
    (contracted, batch), shapes = equation.params["dimension_numbers"], [var.aval.shape for var in equation.invars]
    found = []
    for side, shape in enumerate(shapes):
        roles = {dim: ("contracted", place) for place, dim in enumerate(_long(contracted, shapes, side))}
        roles |= {dim: ("batch", place) for place, dim in enumerate(_long(batch, shapes, side))}
        found.append([roles.get(dim, ("free", size)) for dim, size in enumerate(shape) if size != 1])
    return found


def _long(pairs: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], side: int) -> list[int]:
    """Returns the dims of one side that are paired with those of the other, less those of size 1."""
    return [pair[side] for pair in zip(*pairs, strict=True) if shapes[side][pair[side]] != 1]


def _index_key(equation: Equation) -> Any:
    """Returns what a gather or scatter reads and writes, dims of size 1 aside."""
    numbers = equation.params["dimension_numbers"]
    is_gather = equation.primitive.name == "gather"
    moved = equation.outvars[0] if is_gather else equation.invars[2]
    window = numbers.offset_dims if is_gather else numbers.update_window_dims
    gone = numbers.collapsed_slice_dims if is_gather else numbers.inserted_window_dims
    indexed = numbers.start_index_map if is_gather else numbers.scatter_dims_to_operand_dims
    together = numbers.start_indices_batching_dims if is_gather else numbers.scatter_indices_batching_dims
    shape, indices = equation.invars[0].aval.shape, equation.invars[1].aval.shape
    windowed = [dim for dim in range(len(shape)) if dim not in gone and dim not in numbers.operand_batching_dims]
    batch = [place for place in range(len(moved.aval.shape)) if place not in window]
    sources = {place: ("window", windowed[number]) for number, place in enumerate(sorted(window))}
    long = [dim for dim, size in enumerate(indices[:-1]) if size != 1]
    sources |= {place: ("batch", long.index(number)) for number, place in enumerate(batch) if number in long}
    layout = [sources.get(place) for place, size in enumerate(moved.aval.shape) if size != 1]
    paired = [
        (dim, long.index(place))
        for dim, place in zip(numbers.operand_batching_dims, together, strict=True)
        if place in long
    ]
    mode = equation.params["mode"], str(equation.params.get("fill_value"))
    return longer_dims(shape), longer_dims(indices[:-1]), indices[-1], layout, tuple(indexed), paired, mode
