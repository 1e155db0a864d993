"""Tensor contractions, and the dims along which each can be sharded (CFP, section 3.3).

A matrix product has three dims: M, the ROWS; N, the COLUMNS; and K, the CONTRACTED dim, which it sums over. It can be
sharded along each of them (figure 2a), and a batched one also along its BATCH dims. Several array dims can stand for
the rows (batch and sequence); a partition takes one of them. Looking up embeddings is a product with one-hot rows, and
is treated so.

    dot_general     rows: free dims of the operand that data flows through; columns: those of the other
    convolution     rows: the batch, or a spatial dim; columns: output features; contracted: input features
    gather          rows: dims of the indices; columns: dims of the table that are taken whole; contracted: the one
                    that is looked up
    ragged_dot      rows: the ragged dim, of tokens that are sorted by expert; columns and contracted: those of every
                    expert's weight. Experts are no dim to shard by: the compiler gathers them (`write_ragged`)

A step without any of these is sharded by the rows of its data alone, from the first equation that reads them.
"""

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod

from jaxquard.ir.dependence import Dependences, can_partition
from jaxquard.ir.jaxpr_tools import Equation, Var, is_var


class PartitionKind(enum.Enum):
    """The dim of a contraction that a partition shards: M, N, K or a batch dim."""

    ROWS = "rows"
    COLUMNS = "columns"
    CONTRACTED = "contracted"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One way to shard a contraction over a mesh axis.

    Attributes:
        number: which batch dim, counted from 0; 0 for the other kinds.
        out_dim: the dim of the result that is sharded; None if the result is a sum over devices.
        in_dims: for each input, the dim that is sharded; None for one that is replicated.
        size: of the dim.
    """

    kind: PartitionKind
    number: int = 0
    out_dim: int | None
    in_dims: tuple[int | None, ...]
    size: int

    @property
    def name(self) -> str:
        """The kind as text: `rows`, or `batch 1`."""
        return f"{self.kind.value} {self.number}" if self.kind is PartitionKind.BATCH else self.kind.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """An equation that contracts.

    Attributes:
        position: of the equation in the step.
        groups: for each kind, and each batch dim, the partitions along the array dims that can stand for it, in order.
        data: the position of the input that data flows through.
        has_state: whether the other input comes from the state alone: a weight or a table.
        weight: its multiplications; for a look-up the elements of its table.
    """

    position: int
    equation: Equation = field(repr=False)
    groups: tuple[tuple[Partition, ...], ...]
    data: int
    has_state: bool
    weight: int

    @property
    def is_lookup(self) -> bool:
        return self.equation.primitive.name == "gather"

    @property
    def is_ragged(self) -> bool:
        return self.equation.primitive.name == "ragged_dot_general"


def find_contraction(equation: Equation, position: int, *, data_vars: Collection[Var]) -> Contraction | None:
    """Returns the contraction that an equation is, or None.

    Args:
        data_vars: the variables that depend on the data, not only on the state.
    """
    find = _FINDERS.get(equation.primitive.name)
    return None if find is None else find(equation, position, data_vars)


def find_row_reader(
    equation: Equation, position: int, *, data: Collection[Var], links: Dependences
) -> Contraction | None:
    """Returns an equation that reads rows of the data as a contraction with rows alone; None for any other.

    Args:
        data: the inputs of the step that are data; their first dims are the rows.
        links: of the equation's dims.
    """
    if len(equation.outvars) != 1:
        return None
    for place, atom in enumerate(equation.invars):
        if not is_var(atom) or atom not in data or not atom.aval.shape:
            continue
        (of_inputs,), size = links.links, atom.aval.shape[0]
        # A single row has no links, and need not be sharded.
        found = next((link for link in of_inputs[place] if link.in_dim == 0 and can_partition(link, size)), None)
        if found is None and size > 1:
            continue
        out_dim = None if found is None else found.out_dim
        in_dims = [[link.in_dim for link in of_input if link.out_dim == out_dim] for of_input in of_inputs]
        rows = Partition(
            kind=PartitionKind.ROWS,
            out_dim=out_dim,
            in_dims=tuple(dims[0] if dims else None for dims in in_dims),
            size=size,
        )
        return Contraction(
            position=position,
            equation=equation,
            groups=((rows,),),
            data=place,
            has_state=False,
            weight=prod(equation.outvars[0].aval.shape),
        )
    return None


def _dot_general(equation: Equation, position: int, data_vars: Collection[Var]) -> Contraction:
    (contracted, batch) = equation.params["dimension_numbers"]
    shapes = [atom.aval.shape for atom in equation.invars]
    free = [
        [dim for dim in range(len(shapes[side])) if dim not in contracted[side] and dim not in batch[side]]
        for side in (0, 1)
    ]
    num_batch, num_left = len(batch[0]), len(free[0])
    is_data = [is_var(atom) and atom in data_vars for atom in equation.invars]
    data = 1 if is_data == [False, True] else 0
    sides = (
        [_partition(equation, num_batch + place, (dim, None)) for place, dim in enumerate(free[0])],
        [_partition(equation, num_batch + num_left + place, (None, dim)) for place, dim in enumerate(free[1])],
    )
    groups = [
        *(
            [_partition(equation, number, pair, PartitionKind.BATCH, number)]
            for number, pair in enumerate(zip(*batch, strict=True))
        ),
        sides[data],
        [replace(one, kind=PartitionKind.COLUMNS) for one in sides[1 - data]],
        [_partition(equation, None, pair, PartitionKind.CONTRACTED) for pair in zip(*contracted, strict=True)],
    ]
    summed = prod(shapes[0][dim] for dim in contracted[0])
    weight = prod(equation.outvars[0].aval.shape) * summed
    return _contraction(equation, position, groups, data=data, weight=weight, data_vars=data_vars)


def _convolution(equation: Equation, position: int, data_vars: Collection[Var]) -> Contraction | None:
    params = equation.params
    if params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        return None
    numbers = params["dimension_numbers"]
    (lhs, rhs, out) = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    weights = equation.invars[1].aval.shape
    spatial = _spatial(equation) if set(params["lhs_dilation"]) <= {1} else []
    groups = [
        [_partition(equation, out[0], (lhs[0], None)), *spatial],
        [_partition(equation, out[1], (None, rhs[0]), PartitionKind.COLUMNS)],
        [_partition(equation, None, (lhs[1], rhs[1]), PartitionKind.CONTRACTED)],
    ]
    weight = prod(equation.outvars[0].aval.shape) * prod(weights) // weights[rhs[0]]
    return _contraction(equation, position, groups, data=0, weight=weight, data_vars=data_vars)


def _ragged_dot(equation: Equation, position: int, data_vars: Collection[Var]) -> Contraction | None:
    """Accepts only sorted rows by weights of groups, without batch dims."""
    dims = ragged_dims(equation)
    if dims is None or equation.invars[1] in data_vars:
        return None
    (row, inner), (_, depth, column) = dims
    left, right = (atom.aval.shape for atom in equation.invars[:2])
    others = (None,) * (len(equation.invars) - 2)
    groups = [
        [_partition(equation, 0, (row, None, *others))],
        [_partition(equation, 1, (None, column, *others), PartitionKind.COLUMNS)],
        [_partition(equation, None, (inner, depth, *others), PartitionKind.CONTRACTED)],
    ]
    weight = prod(left) * right[column]
    return _contraction(equation, position, groups, data=0, weight=weight, data_vars=data_vars)


def _partition(
    equation: Equation,
    out_dim: int | None,
    in_dims: tuple[int | None, ...],
    kind: PartitionKind = PartitionKind.ROWS,
    number: int = 0,
) -> Partition:
    """Returns a partition, of the size of the dim of the first input that it shards."""
    shapes = (atom.aval.shape for atom in equation.invars)
    size = next(shape[dim] for shape, dim in zip(shapes, in_dims, strict=True) if dim is not None)
    return Partition(kind=kind, number=number, out_dim=out_dim, in_dims=in_dims, size=size)


def ragged_dims(equation: Equation) -> tuple[tuple[int, int], tuple[int, int, int]] | None:
    """Returns the dims of a product of sorted rows with weights of groups; None for any other equation.

    These are: of the rows, the ragged and the contracted dim; of the weights, those of groups, contracted and columns.
    """
    if equation.primitive.name != "ragged_dot_general":
        return None
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (left, right), (batch, _) = numbers.dot_dimension_numbers
    (row,), groups = numbers.lhs_ragged_dimensions, tuple(numbers.rhs_group_dimensions)
    if batch or len(left) != 1 or row in left or len(groups) != 1 or not is_var(equation.invars[1]):
        return None
    ranks = [len(atom.aval.shape) for atom in equation.invars[:2]]
    if ranks != [2, 3]:
        return None
    (column,) = {0, 1, 2} - {*groups, *right}
    return (row, left[0]), (groups[0], right[0], column)


def _spatial(equation: Equation) -> list[Partition]:
    """Returns the partition of a convolution's first spatial dim, for a batch that the devices do not divide.

    Neighbours exchange the rows of the image that a window reaches beyond a shard.
    """
    numbers = equation.params["dimension_numbers"]
    before, after = numbers.lhs_spec[2:3], numbers.out_spec[2:3]
    sizes = [
        (out_dim, in_dim, gcd(equation.invars[0].aval.shape[in_dim], equation.outvars[0].aval.shape[out_dim]))
        for out_dim, in_dim in zip(after, before, strict=True)
    ]
    return [
        Partition(kind=PartitionKind.ROWS, out_dim=out_dim, in_dims=(in_dim, None), size=size)
        for out_dim, in_dim, size in sizes
        if size > 1
    ]


def _gather(equation: Equation, position: int, data_vars: Collection[Var]) -> Contraction | None:
    """Accepts only a table of state, looked up along one dim by data."""
    table, indices = equation.invars
    numbers = equation.params["dimension_numbers"]
    looked_up = numbers.collapsed_slice_dims
    is_lookup = len(looked_up) == 1 and tuple(numbers.start_index_map) == tuple(looked_up)
    if not is_lookup or numbers.operand_batching_dims or not (is_var(table) and is_var(indices)):
        return None
    if table in data_vars or indices not in data_vars:
        return None
    shape, out_shape = table.aval.shape, equation.outvars[0].aval.shape
    kept = [dim for dim in range(len(shape)) if dim not in looked_up]
    row_dims = [dim for dim in range(len(out_shape)) if dim not in numbers.offset_dims]
    whole = [
        (out, dim)
        for out, dim in zip(numbers.offset_dims, kept, strict=True)
        if equation.params["slice_sizes"][dim] == shape[dim]
    ]
    groups = [
        [
            Partition(kind=PartitionKind.ROWS, out_dim=out, in_dims=(None, place), size=out_shape[out])
            for place, out in enumerate(row_dims)
        ],
        [_partition(equation, out, (dim, None), PartitionKind.COLUMNS) for out, dim in whole],
        [_partition(equation, None, (looked_up[0], None), PartitionKind.CONTRACTED)],
    ]
    return _contraction(equation, position, groups, data=1, weight=prod(shape), data_vars=data_vars)


def _contraction(
    equation: Equation,
    position: int,
    groups: Sequence[Sequence[Partition]],
    *,
    data: int,
    weight: int,
    data_vars: Collection[Var],
) -> Contraction:
    return Contraction(
        position=position,
        equation=equation,
        groups=tuple(tuple(group) for group in groups if group),
        data=data,
        has_state=is_var(equation.invars[1 - data]) and equation.invars[1 - data] not in data_vars,
        weight=weight,
    )


_FINDERS: dict[str, Callable[[Equation, int, Collection[Var]], Contraction | None]] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "ragged_dot_general": _ragged_dot,
}
