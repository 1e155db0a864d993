"""Finds, for the contractions of the forward, those of the backward that make their gradients.

    forward    c = dot_general[contract k] a b
    backward   e = dot_general[contract the free dims of a] a d      e is the gradient of b, d that of c
               f = dot_general[contract the free dims of b] d b      f is the gradient of a, d that of c

    forward    c = ragged_dot a b sizes
    backward   e = ragged_dot_general[contract the ragged dims] a d sizes       e is the gradient of b
               f = ragged_dot_general[contract the columns of b] d b sizes      f is the gradient of a

A gradient has the layout of the value that it belongs to, so that a block's backward stays with its forward (CFP,
section 3.2). Operands are compared by value: a checkpoint's backward recomputes them, and JAX transposes and casts them
on the way. A gradient that is not found is left to the compiler.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.intraop.blocks.contraction import ragged_dims
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import Equation, Var, is_var


@dataclass(frozen=True, slots=True, kw_only=True)
class Cotangent:
    """A variable of the backward that is the gradient of a value of the forward.

    Attributes:
        position: of the forward contraction.
        place: which input of it the gradient belongs to; None for its result.
        dims: for each dim of the variable, the dim of the value.
    """

    position: int
    place: int | None
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardContraction:
    """A contraction of the backward: of an input of a forward contraction with the gradient of its result.

    Attributes:
        forward: the position of the forward contraction.
        place: which input of the forward contraction it takes; it makes the gradient of the other one.
        side: which of its own inputs that is.
        shared_dims: for each dim of that input, the dim of the forward's input.
        given_dims: for each dim of its other input, the dim of the forward's result.
        made_dims: for each dim of its result, the dim of the forward's other input.
    """

    forward: int
    place: int
    side: int
    shared_dims: tuple[int, ...]
    given_dims: tuple[int, ...]
    made_dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """The gradients that backward contractions compute.

    Attributes:
        cotangents: by variable.
        contractions: those of the backward, by position.
    """

    cotangents: dict[Var, Cotangent]
    contractions: dict[int, BackwardContraction]


def match_backward(graph: StepGraph) -> Matches:
    """Finds the gradients that backward contractions compute."""
    operands: dict[Var, list[tuple[int, int, tuple[int, ...]]]] = {}
    for position, contraction in graph.contractions.items():
        if contraction.equation.primitive.name in _PRODUCTS:
            for place, atom in enumerate(contraction.equation.invars[:2]):
                if is_var(atom):
                    source, dims = _strip(graph, atom)
                    operands.setdefault(source, []).append((position, place, dims))
    matches = Matches(cotangents={}, contractions={})
    taken: set[tuple[int, int]] = set()
    for position, equation in enumerate(graph.equations):
        if _is_backward_product(graph, position, equation):
            _match(graph, position, equation, operands, taken, matches)
    return matches


def _is_backward_product(graph: StepGraph, position: int, equation: Equation) -> bool:
    is_product = equation.primitive.name in _PRODUCTS and graph.phases[position] is EquationPhase.BACKWARD
    return is_product and graph.first(equation.outvars[0]) is equation.outvars[0]


def _match(
    graph: StepGraph,
    position: int,
    equation: Equation,
    operands: dict[Var, list[tuple[int, int, tuple[int, ...]]]],
    taken: set[tuple[int, int]],
    matches: Matches,
) -> None:
    for side, atom in enumerate(equation.invars[:2]):
        if not is_var(atom):
            continue
        source, dims = _strip(graph, atom)
        for forward, place, forward_dims in reversed(operands.get(source, ())):
            if (forward, place) in taken:
                continue
            # From a dim of the operand here to a dim of the operand of the forward contraction.
            same = {dim: forward_dims.index(dims[dim]) for dim in range(len(dims))}
            find = _PRODUCTS[equation.primitive.name]
            is_same = graph.equations[forward].primitive is equation.primitive
            found = find(graph.equations[forward], place, equation, side, same) if is_same else None
            if found is None:
                continue
            of_other, of_result = found
            taken.add((forward, place))
            matches.contractions[position] = BackwardContraction(
                forward=forward,
                place=place,
                side=side,
                shared_dims=tuple(same[dim] for dim in range(len(dims))),
                given_dims=of_result,
                made_dims=of_other,
            )
            matches.cotangents[equation.outvars[0]] = Cotangent(position=forward, place=1 - place, dims=of_other)
            given = equation.invars[1 - side]
            if is_var(given):
                matches.cotangents.setdefault(given, Cotangent(position=forward, place=None, dims=of_result))
            return


def _gradients(
    forward: Equation, place: int, backward: Equation, side: int, same: dict[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the dims of the gradients of the other input and of the result; None if this is no such product.

    Args:
        place: which input of `forward` the products share.
        side: which input of `backward` that is.
        same: from dims of it in `backward` to those in `forward`.
    """
    contracted, batch = _numbers(forward)
    free = [_free(forward, number) for number in (0, 1)]
    contracted_here, batch_here = _numbers(backward)
    shared_sums = [same[dim] for dim in contracted_here[side]]
    if sorted(shared_sums) != sorted(free[place]):
        return None
    if sorted(same[dim] for dim in batch_here[side]) != sorted(batch[place]):
        return None
    other = 1 - place
    result = _result_dims(forward)
    given_free = _free(backward, 1 - side)
    if len(given_free) != len(free[other]):
        return None
    # The gradient that is given: its dims as dims of the forward result.
    given: dict[int, int] = {}
    for dim, shared in zip(contracted_here[1 - side], contracted_here[side], strict=True):
        given[dim] = result[place, same[shared]]
    for dim, shared in zip(batch_here[1 - side], batch_here[side], strict=True):
        given[dim] = result[place, same[shared]]
    for dim, wanted in zip(given_free, free[other], strict=True):
        given[dim] = result[other, wanted]
    of_result = tuple(given[dim] for dim in range(len(given)))
    # The gradient that is made: batch dims, then the free dims of both inputs in order.
    partner = dict(zip(contracted[place], contracted[other], strict=True)) | dict(
        zip(batch[place], batch[other], strict=True)
    )
    made: list[int] = [partner[same[dim]] for dim in batch_here[side]]
    for number in (0, 1):
        if number == side:
            made.extend(partner[same[dim]] for dim in _free(backward, side))
        else:
            made.extend(free[other])
    fits = _fits(backward.outvars[0], forward.invars[other], made) and _fits(
        backward.invars[1 - side], forward.outvars[0], of_result
    )
    return (tuple(made), of_result) if fits else None


def _ragged_gradients(
    forward: Equation, place: int, backward: Equation, side: int, same: dict[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns what `_gradients` does, for products of sorted rows with weights of groups."""
    of_forward = ragged_dims(forward)
    if of_forward is None:
        return None
    (row, inner), (group, depth, column) = of_forward
    numbers = backward.params["ragged_dot_dimension_numbers"]
    of_backward = ragged_dims(backward)
    if place == 1 and side == 1 and of_backward is not None:
        # The gradient of rows: of the result by the weights, along their columns.
        given, weights = of_backward
        is_gradient = [same[dim] for dim in weights] == [group, column, depth]
        of_result = tuple(given.index(dim) for dim in (0, 1))
        made: tuple[int, ...] = (row, inner)
    elif place == 0 and side == 0 and not numbers.rhs_group_dimensions:
        # The gradient of weights: of the rows by the result's, along the ragged dims.
        (left, right), (batch, _) = numbers.dot_dimension_numbers
        is_gradient = not batch and [same[dim] for dim in left] == [row] and tuple(right) == (0,)
        of_result, made = (0, 1), (group, depth, column)
    else:
        return None
    fits = is_gradient and _fits(backward.outvars[0], forward.invars[1 - place], made)
    return (made, of_result) if fits and _fits(backward.invars[1 - side], forward.outvars[0], of_result) else None


_PRODUCTS = {"dot_general": _gradients, "ragged_dot_general": _ragged_gradients}


def _fits(gradient: Var, value: Var, dims: Sequence[int]) -> bool:
    """Returns true if a gradient has the value's size along every dim."""
    return sorted(dims) == list(range(len(value.aval.shape))) and all(
        size == value.aval.shape[dim] for size, dim in zip(gradient.aval.shape, dims, strict=True)
    )


def _numbers(equation: Equation) -> tuple[tuple[Sequence[int], ...], tuple[Sequence[int], ...]]:
    contracted, batch = equation.params["dimension_numbers"]
    return contracted, batch


def _free(equation: Equation, place: int) -> list[int]:
    contracted, batch = _numbers(equation)
    rank = len(equation.invars[place].aval.shape)
    return [dim for dim in range(rank) if dim not in contracted[place] and dim not in batch[place]]


def _result_dims(equation: Equation) -> dict[tuple[int, int], int]:
    """Maps (input, dim) to the dim of the result."""
    _, batch = _numbers(equation)
    found: dict[tuple[int, int], int] = {}
    for number, pair in enumerate(zip(*batch, strict=True)):
        found[0, pair[0]] = found[1, pair[1]] = number
    places = [(place, dim) for place in (0, 1) for dim in _free(equation, place)]
    return found | {key: len(batch[0]) + number for number, key in enumerate(places)}


def _strip(graph: StepGraph, var: Var) -> tuple[Var, tuple[int, ...]]:
    """Returns the variable behind casts and transposes, and for each dim the dim of that variable."""
    dims = tuple(range(len(var.aval.shape)))
    while True:
        var = graph.first(var)
        position = graph.definitions.get(var)
        if position is None:
            return var, dims
        equation = graph.equations[position]
        if equation.primitive.name == "transpose":
            permutation = equation.params["permutation"]
            dims = tuple(permutation[dim] for dim in dims)
        elif equation.primitive.name != "convert_element_type":
            return var, dims
        if not is_var(equation.invars[0]):
            return var, dims
        var = equation.invars[0]
