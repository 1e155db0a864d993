"""Operations along one dim, or several, that treat the others as a batch.

Running sums, sorts and transforms work along a dim; sliding windows leave linked the dims with a window of one element,
not moved and not padded; factorisations and solvers work on the last dims of their first operand.
"""

from jaxquard.ir.dependence.link import Dependence
from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, for_each, in_shapes, out_shapes
from jaxquard.ir.dependence.rules.randomness import leading_dims
from jaxquard.ir.dependence.rules.slices import other_dims
from jaxquard.ir.jaxpr_tools import Equation


def _cumulative(equation: Equation) -> Relation:
    return ((other_dims(in_shapes(equation)[0], (equation.params["axis"],)),),)


def _sort(equation: Equation) -> Relation:
    """Each output needs the keys, which are the first operands, and its own operand."""
    shapes, dim, num_keys = in_shapes(equation), equation.params["dimension"], equation.params["num_keys"]

    def depends(output: int, operand: int) -> Dependence:
        return other_dims(shapes[operand], (dim,)) if operand in (*range(num_keys), output) else None

    return tuple(tuple(depends(output, operand) for operand in range(len(shapes))) for output in range(len(shapes)))


def _top_k(equation: Equation) -> Relation:
    shape = in_shapes(equation)[0]
    params = equation.params
    dim = params["axis"] if "axis" in params else params.get("reduction_dimension", -1)
    return ((other_dims(shape, (dim % len(shape),)),),) * len(equation.outvars)


def _fft(equation: Equation) -> Relation:
    shape = in_shapes(equation)[0]
    num_transformed = len(equation.params["fft_lengths"])
    return ((other_dims(shape, range(len(shape) - num_transformed, len(shape))),),)


def _windowed_dims(equation: Equation) -> list[int]:
    params = equation.params
    rank = len(params["window_dimensions"])
    still = (1,) * rank
    windows = zip(
        params["window_dimensions"],
        params["window_strides"],
        params.get("base_dilation", still),
        params["padding"],
        strict=True,
    )
    return [
        dim
        for dim, (size, stride, dilation, padding) in enumerate(windows)
        if (size, stride, dilation, *padding) != (1, 1, 1, 0, 0)
    ]


def _reduce_window(equation: Equation) -> Relation:
    """Arrays, and a first value for each where the reduction is general: scalars, which have no links."""
    windowed = _windowed_dims(equation)
    row = tuple(other_dims(shape, windowed) for shape in in_shapes(equation))
    return (row,) * len(equation.outvars)


def _batched(num_core_dims: int) -> Rule:
    def rule(equation: Equation) -> Relation:
        shapes = in_shapes(equation)
        rank = len(shapes[0]) - num_core_dims
        return tuple(tuple(leading_dims(rank, out, shape) for shape in shapes) for out in out_shapes(equation))

    return rule


_CUMULATIVE = "cumlogsumexp cummax cummin cumprod cumsum"
_WINDOWED = """
    reduce_window reduce_window_max reduce_window_min reduce_window_sum
    select_and_gather_add select_and_scatter select_and_scatter_add
"""
_MATRICES = """
    cholesky eig eigh hessenberg householder_product lu qr schur svd triangular_solve tridiagonal
"""
_VECTORS = "lu_pivots_to_permutation tridiagonal_solve"

RULES: dict[str, Rule] = (
    for_each(_CUMULATIVE, _cumulative)
    | for_each(_WINDOWED, _reduce_window)
    | for_each(_MATRICES, _batched(2))
    | for_each(_VECTORS, _batched(1))
    | {"sort": _sort, "top_k": _top_k, "approx_top_k": _top_k, "fft": _fft}
)
