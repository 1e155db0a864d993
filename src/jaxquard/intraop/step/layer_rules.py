"""Rules to do an operation on stacks of layers layer by layer.

    c = mul a b                         c0 = mul a0 b0 ; c1 = mul a1 b1
    d = reduce_sum[axes=(0, 1)] c   =>  e0 = reduce_sum[axes=(0,)] c0 ; e1 = ... ; d = add e0 e1

A stack has the layers as its first dim; a layer of it does not have that dim. The rules are a table over primitives; an
operation without one, or to which its rule does not apply, is done on the joined stack, which is right for everything.

Some operations only rearrange layers (`Rearranged`): the layers of the result are layers of the inputs.

    a = slice[0:1] w ; b = squeeze a            b = w0
    c = pad[below=1] g ; d = add_any c e    =>  d0 = add_any g0 e0 ; d1 = e1

So an iteration that takes its two layers out of a stack of pairs has each by itself, and the gradients of both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.extend import core

from jaxquard.ir.dependence.rules.randomness import is_each_by_itself
from jaxquard.ir.jaxpr_tools import Equation, Var, is_var
from jaxquard.ir.operations import ELEMENTWISE


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerForm:
    """An operation in the form for one layer.

    Attributes:
        stacked: for each input, whether it is a stack (of one layer, if all take the same); else each layer takes it
            whole.
        params: for one layer; None if the result for a layer is its first input.
        combine: the operation that combines the results of all layers; None if the results are stacks.
    """

    stacked: tuple[bool, ...]
    params: dict[str, Any] | None
    combine: core.Primitive | None = None


def layer_form(equation: Equation) -> LayerForm | None:
    """Returns the form of an operation for one layer; None if it must be done on the whole stack."""
    rule = _RULES.get(equation.primitive.name)
    return None if rule is None else rule(equation)


def num_layers(equation: Equation, form: LayerForm) -> int:
    """Returns the number of layers of an operation's stacks."""
    return max(atom.aval.shape[0] for atom in _with_layers(equation, form))


def stacks_of(equation: Equation, form: LayerForm) -> list[Var]:
    """Returns the variables of an operation that are stacks if one of them is."""
    count = num_layers(equation, form)
    return [atom for atom in _with_layers(equation, form) if is_var(atom) and atom.aval.shape[0] == count]


def _with_layers(equation: Equation, form: LayerForm) -> list[Var]:
    inputs = [atom for atom, is_stacked in zip(equation.invars, form.stacked, strict=True) if is_stacked]
    return [*inputs, *(equation.outvars if form.combine is None else ())]


def _elementwise(equation: Equation) -> LayerForm | None:
    """Applies to inputs that are scalars, or have the result's shape but for dims of size 1 that are broadcast."""
    shape = equation.outvars[0].aval.shape
    ranks = [len(atom.aval.shape) for atom in (*equation.invars, *equation.outvars)]
    if not shape or any(rank not in (0, len(shape)) for rank in ranks):
        return None
    return LayerForm(stacked=tuple(bool(atom.aval.shape) for atom in equation.invars), params=equation.params)


def _broadcast(equation: Equation) -> LayerForm | None:
    shape, dims = equation.params["shape"], tuple(map(int, equation.params["broadcast_dimensions"]))
    operand = equation.invars[0].aval.shape
    keeps = bool(dims) and dims[0] == 0
    if len(equation.invars) > 1 or not shape or (keeps and operand[0] != shape[0]):
        return None
    left = operand[1:] if keeps else operand
    moved = tuple(dim - 1 for dim in dims[keeps:])
    params = {**equation.params, "shape": tuple(shape[1:]), "broadcast_dimensions": moved}
    return LayerForm(stacked=(keeps,), params=None if left == tuple(shape[1:]) else params)


def _reduction(combine: core.Primitive | None) -> Callable[[Equation], LayerForm | None]:
    def rule(equation: Equation) -> LayerForm | None:
        axes = tuple(equation.params["axes"])
        if len(equation.invars) > 1 or not equation.invars[0].aval.shape or (0 in axes and combine is None):
            return None
        left = tuple(axis - 1 for axis in axes if axis)
        params = {**equation.params, "axes": left} if left else None
        return LayerForm(stacked=(True,), params=params, combine=combine if 0 in axes else None)

    return rule


def _reshape(equation: Equation) -> LayerForm | None:
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if not before or not after or before[0] != after[0] or equation.params.get("dimensions") is not None:
        return None
    params = {**equation.params, "new_sizes": tuple(after[1:])}
    return LayerForm(stacked=(True,), params=None if before == after else params)


def _transpose(equation: Equation) -> LayerForm | None:
    permutation = equation.params["permutation"]
    if not permutation or permutation[0] != 0:
        return None
    moved = tuple(dim - 1 for dim in permutation[1:])
    return LayerForm(stacked=(True,), params={**equation.params, "permutation": moved})


def _squeeze(equation: Equation) -> LayerForm | None:
    dims = equation.params["dimensions"]
    moved = tuple(dim - 1 for dim in dims)
    return None if 0 in dims else LayerForm(stacked=(True,), params={**equation.params, "dimensions": moved})


def _dot_general(equation: Equation) -> LayerForm | None:
    contracted, batch = equation.params["dimension_numbers"]
    if not batch[0] or batch[0][0] != 0 or batch[1][0] != 0:
        return None
    moved = (_moved(contracted), _moved([dims[1:] for dims in batch]))
    return LayerForm(stacked=(True, True), params={**equation.params, "dimension_numbers": moved})


def _moved(sides: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(dim - 1 for dim in dims) for dims in sides)


def _slice(equation: Equation) -> LayerForm | None:
    """Applies where every layer is sliced alike."""
    names = ("start_indices", "limit_indices", "strides")
    starts, limits, strides = (equation.params[name] for name in names)
    if starts[0] != 0 or limits[0] != equation.invars[0].aval.shape[0] or (strides and strides[0] != 1):
        return None
    moved = (starts[1:], limits[1:], strides and strides[1:])
    return LayerForm(stacked=(True,), params={**equation.params, **dict(zip(names, moved, strict=True))})


def _pad(equation: Equation) -> LayerForm | None:
    config = equation.params["padding_config"]
    if not config or any(config[0]):
        return None
    return LayerForm(stacked=(True, False), params={**equation.params, "padding_config": tuple(config[1:])})


def _along(name: str) -> Callable[[Equation], LayerForm | None]:
    """Returns the rule of an operation along the dim that a parameter names."""

    def rule(equation: Equation) -> LayerForm | None:
        dim = equation.params[name]
        if dim == 0:
            return None
        return LayerForm(stacked=(True,) * len(equation.invars), params={**equation.params, name: dim - 1})

    return rule


def _keys(equation: Equation) -> LayerForm | None:
    """Applies where each key is taken by itself."""
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    same = all(atom.aval.shape == before for atom in equation.invars)
    is_stack = bool(before) and bool(after) and before[0] == after[0] and same and is_each_by_itself(equation)
    return LayerForm(stacked=(True,) * len(equation.invars), params=equation.params) if is_stack else None


_RULES: dict[str, Callable[[Equation], LayerForm | None]] = {
    **dict.fromkeys((*ELEMENTWISE, "accumulated", "name", "one_minus_square", "log2"), _elementwise),
    **dict.fromkeys(("argmax", "argmin"), _reduction(None)),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _along("axis")),
    **dict.fromkeys(("random_bits", "random_wrap", "random_unwrap", "random_fold_in", "random_split"), _keys),
    "reduce_sum": _reduction(lax.add_p),
    "reduce_max": _reduction(lax.max_p),
    "reduce_min": _reduction(lax.min_p),
    "reduce_prod": _reduction(lax.mul_p),
    "reduce_and": _reduction(lax.and_p),
    "reduce_or": _reduction(lax.or_p),
    "broadcast_in_dim": _broadcast,
    "concatenate": _along("dimension"),
    "dot_general": _dot_general,
    "pad": _pad,
    "reshape": _reshape,
    "slice": _slice,
    "split": _along("axis"),
    "squeeze": _squeeze,
    "transpose": _transpose,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearranged:
    """The source of each layer of a result.

    Attributes:
        sources: for each layer of the result, an input and a layer of it; None for one of zeros.
        is_stacked: whether the inputs are stacks; else there is one, which is the layer.
        makes_stack: whether the result is a stack; else it is the layer.
    """

    sources: tuple[tuple[int, int] | None, ...]
    is_stacked: bool = True
    makes_stack: bool = True


def rearranged(equation: Equation) -> Rearranged | None:
    """Returns the rearrangement that an operation is; None if it does something else."""
    rule = _REARRANGEMENTS.get(equation.primitive.name)
    return None if rule is None else rule(equation)


def rearranged_stacks(equation: Equation, form: Rearranged) -> list[Var]:
    """Returns the variables of a rearrangement that are stacks if one of them is."""
    inputs = equation.invars[: 1 + max((source[0] for source in form.sources if source), default=0)]
    return [
        *(atom for atom in inputs if form.is_stacked and is_var(atom)),
        *(equation.outvars if form.makes_stack else ()),
    ]


def _slice_layers(equation: Equation) -> Rearranged | None:
    starts, limits, strides = (equation.params[name] for name in ("start_indices", "limit_indices", "strides"))
    shape = equation.invars[0].aval.shape
    if starts[0] == limits[0]:
        return None
    if any(starts[1:]) or tuple(limits[1:]) != shape[1:] or (strides and any(stride != 1 for stride in strides)):
        return None
    return Rearranged(sources=tuple((0, layer) for layer in range(starts[0], limits[0])))


def _squeeze_layer(equation: Equation) -> Rearranged | None:
    if tuple(equation.params["dimensions"]) != (0,):
        return None
    return Rearranged(sources=((0, 0),), makes_stack=False)


def _expand_layer(equation: Equation) -> Rearranged | None:
    shape, operand = equation.outvars[0].aval.shape, equation.invars[0].aval.shape
    dims = equation.params.get("broadcast_dimensions", range(1, len(shape)))
    if len(equation.invars) > 1 or shape != (1, *operand) or tuple(dims) != tuple(range(1, len(shape))):
        return None
    return Rearranged(sources=((0, 0),), is_stacked=False)


def _pad_layers(equation: Equation) -> Rearranged | None:
    config, value = equation.params["padding_config"], equation.invars[1]
    if not config or any(any(dim) for dim in config[1:]) or is_var(value) or value.val != 0:
        return None
    below, above, between = config[0]
    if between or below < 0 or above < 0:
        return None
    layers = tuple((0, layer) for layer in range(equation.invars[0].aval.shape[0]))
    return Rearranged(sources=((None,) * below + layers + (None,) * above))


def _join_layers(equation: Equation) -> Rearranged:
    """Joins the parts of a stack (`pipeline_scan`)."""
    sizes = equation.params["sizes"]
    return Rearranged(sources=tuple((part, layer) for part, size in enumerate(sizes) for layer in range(size)))


_REARRANGEMENTS = {
    "join_stack": _join_layers,
    "slice": _slice_layers,
    "squeeze": _squeeze_layer,
    "broadcast_in_dim": _expand_layer,
    "pad": _pad_layers,
}
