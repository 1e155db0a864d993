"""Gather and scatter with general dimension numbers.

The indices have their vectors along the last dim; their other dims are batch dims, which stand in the
same order among the dims of the gathered output or of the scattered updates. A dim of the operand is
in a slice (a window), or has one index for each slice, or is a batch dim of operand and indices alike.
"""

from jaxquard.ir.dependence.link import links_of
from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, for_each, in_shapes, out_shapes
from jaxquard.ir.jaxpr_tools import Equation


def _gather(equation: Equation) -> Relation:
    """Whole slices are linked with the operand, batch dims with the indices."""
    numbers, slice_sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    operand, indices = in_shapes(equation)
    single = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [dim for dim in range(len(operand)) if dim not in single]
    offsets = sorted(numbers.offset_dims)
    batch = [dim for dim in range(len(out_shapes(equation)[0])) if dim not in offsets]
    shared = dict(zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True))
    from_operand = [
        *((to, dim, operand[dim]) for to, dim in zip(offsets, window, strict=True) if slice_sizes[dim] == operand[dim]),
        *((batch[dim], operand_dim, operand[operand_dim]) for dim, operand_dim in shared.items()),
    ]
    from_indices = ((to, dim, indices[dim]) for dim, to in enumerate(batch))
    return ((links_of(from_operand), links_of(from_indices)),)


def _scatter(equation: Equation) -> Relation:
    """Whole windows are linked with operand and updates, batch dims with the indices too.

    The other batch dims of the indices are contracted, and a dim that is indexed into is not linked:
    each device would need all updates.
    """
    numbers = equation.params["dimension_numbers"]
    operand, indices, updates = in_shapes(equation)
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = [dim for dim in range(len(operand)) if dim not in single]
    update_window = sorted(numbers.update_window_dims)
    update_batch = [dim for dim in range(len(updates)) if dim not in update_window]
    filled = [
        (dim, update_dim)
        for dim, update_dim in zip(window, update_window, strict=True)
        if operand[dim] == updates[update_dim]
    ]
    shared = list(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    return (
        (
            links_of((dim, dim, operand[dim]) for dim, _ in [*filled, *shared]),
            links_of((dim, indices_dim, indices[indices_dim]) for dim, indices_dim in shared),
            links_of((dim, to, updates[to]) for dim, to in [*filled, *((d, update_batch[i]) for d, i in shared)]),
        ),
    )


_SCATTERS = "scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub"

RULES: dict[str, Rule] = {"gather": _gather} | for_each(_SCATTERS, _scatter)
