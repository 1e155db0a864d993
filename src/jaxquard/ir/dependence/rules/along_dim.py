"""Operations along one dim (or several) that treat the others as a batch: scans, sorts, transforms."""

from jaxquard.ir.dependence.link import Dependence
from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, for_each, in_shapes
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


_CUMULATIVE = "cumlogsumexp cummax cummin cumprod cumsum"

RULES: dict[str, Rule] = for_each(_CUMULATIVE, _cumulative) | {
    "sort": _sort,
    "top_k": _top_k,
    "approx_top_k": _top_k,
    "fft": _fft,
}
