"""Products and convolutions: the contracted dims are `*`, batch and free dims are linked."""

from jaxquard.ir.dependence.link import links_of
from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, in_shapes, out_shapes
from jaxquard.ir.jaxpr_tools import Equation


def _free_dims(rank: int, *used: tuple[int, ...]) -> list[int]:
    return [dim for dim in range(rank) if not any(dim in dims for dims in used)]


def _dot_general(equation: Equation) -> Relation:
    """The output has the batch dims, then the free dims of the left, then those of the right."""
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs, rhs = in_shapes(equation)
    lhs_free = _free_dims(len(lhs), lhs_contracted, lhs_batch)
    rhs_free = _free_dims(len(rhs), rhs_contracted, rhs_batch)
    from_lhs = [*lhs_batch, *lhs_free]
    from_rhs = [*enumerate(rhs_batch), *enumerate(rhs_free, start=len(from_lhs))]
    return (
        (
            links_of((to, dim, lhs[dim]) for to, dim in enumerate(from_lhs)),
            links_of((to, dim, rhs[dim]) for to, dim in from_rhs),
        ),
    )


def _ragged_dot_general(equation: Equation) -> Relation:
    """As `dot_general`, less the ragged and the group dims: which rows meet is known at run time only.

    Where the contracted dim is ragged, the output has the groups in front. Whatever other inputs
    there are (the sizes of the groups, an offset) are read whole.
    """
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    ragged, groups = tuple(numbers.lhs_ragged_dimensions), tuple(numbers.rhs_group_dimensions)
    lhs, rhs, *others = in_shapes(equation)
    first = 1 if ragged[0] in lhs_contracted else 0
    lhs_dims = [*lhs_batch, *_free_dims(len(lhs), lhs_contracted, lhs_batch)]
    rhs_free = _free_dims(len(rhs), rhs_contracted, rhs_batch, groups)
    lhs_links = [(first + to, dim, lhs[dim]) for to, dim in enumerate(lhs_dims) if dim not in ragged]
    rhs_links = [
        *((first + to, dim, rhs[dim]) for to, dim in enumerate(rhs_batch) if lhs_batch[to] not in ragged),
        *((first + to, dim, rhs[dim]) for to, dim in enumerate(rhs_free, start=len(lhs_dims))),
    ]
    return ((links_of(lhs_links), links_of(rhs_links)) + ((),) * len(others),)


def _convolution(equation: Equation) -> Relation:
    """Batch with batch, output features with those of the kernel.

    With feature groups, output features and input features keep in step group by group; with batch
    groups, output features and the batch do. Then the kernel is split by groups as well, so that a
    piece is itself such a convolution.
    """
    params = equation.params
    numbers = params["dimension_numbers"]
    lhs, _ = in_shapes(equation)
    out_features = out_shapes(equation)[0][numbers.out_spec[1]]
    feature_groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    num_groups = feature_groups * batch_groups
    (out_batch, out_feature), (lhs_batch, lhs_feature) = numbers.out_spec[:2], numbers.lhs_spec[:2]
    lhs_links = [(out_feature, lhs_feature, feature_groups), (out_feature, lhs_batch, batch_groups)]
    if batch_groups == 1:
        lhs_links.append((out_batch, lhs_batch, lhs[lhs_batch]))
    lhs_links += [(numbers.out_spec[2 + k], numbers.lhs_spec[2 + k], size) for k, size in _pointwise_dims(equation)]
    rhs_links = [(out_feature, numbers.rhs_spec[0], out_features if num_groups == 1 else num_groups)]
    return ((links_of(lhs_links), links_of(rhs_links)),)


def _pointwise_dims(equation: Equation) -> list[tuple[int, int]]:
    """The spatial dims, with their sizes, along which each output needs one input alone."""
    params = equation.params
    lhs, rhs = in_shapes(equation)
    numbers = params["dimension_numbers"]
    found = []
    for k, lhs_dim in enumerate(numbers.lhs_spec[2:]):
        window = (rhs[numbers.rhs_spec[2 + k]], params["window_strides"][k], params["lhs_dilation"][k])
        if window == (1, 1, 1) and tuple(params["padding"][k]) == (0, 0):
            found.append((k, lhs[lhs_dim]))
    return found


RULES: dict[str, Rule] = {
    "dot_general": _dot_general,
    "ragged_dot_general": _ragged_dot_general,
    "conv_general_dilated": _convolution,
}
