"""Elementwise operations: `(a_0, ..., a_n) -> (a_0, ..., a_n)` in Table 1.

Inputs have the shape of the output, or are scalars, or have dims of size 1 where they are stretched;
only dims of the same size are linked.
"""

from jaxquard.ir.dependence.link import Links, links_of
from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, for_each, in_shapes, out_shapes
from jaxquard.ir.jaxpr_tools import Equation


def same_dims(out_shape: tuple[int, ...], in_shape: tuple[int, ...]) -> Links:
    """Each dim with the one at its place, where ranks and sizes are the same."""
    if len(out_shape) != len(in_shape):
        return ()
    sizes = zip(out_shape, in_shape, strict=True)
    return links_of((dim, dim, size) for dim, (size, in_size) in enumerate(sizes) if size == in_size)


def elementwise(equation: Equation) -> Relation:
    """An element of any output needs the same element of each input."""
    return tuple(tuple(same_dims(out, shape) for shape in in_shapes(equation)) for out in out_shapes(equation))


def one_to_one(equation: Equation) -> Relation:
    """Output i needs the same element of input i, and nothing of the others."""
    shapes = in_shapes(equation)
    return tuple(
        tuple(same_dims(out, shape) if row == column else None for column, shape in enumerate(shapes))
        for row, out in enumerate(out_shapes(equation))
    )


_ONE_INPUT = """
    abs acos acosh asin asinh atan atanh cbrt ceil clz conj convert_element_type copy copy_p cos cosh digamma erf
    erf_inv erfc exp exp2 expm1 floor imag integer_pow is_finite lgamma log log1p log2 logistic neg not one_minus_square
    population_count real reduce_precision round rsqrt sign sin sinh sqrt square stop_gradient tan tanh
"""
_MORE_INPUTS = """
    add add_any and atan2 clamp complex div eq eq_to ge gt le le_to lt lt_to max min mul mulhi ne nextafter or pow rem
    select_n shift_left shift_right_arithmetic shift_right_logical sub xor
"""
# Series and iterations: many operations for each element.
_SPECIAL_FUNCTIONS = """
    bessel_i0e bessel_i1e igamma igamma_grad_a igammac polygamma regularized_incomplete_beta zeta
"""
_IDENTITIES = "accumulated layout_constraint name pvary reshard sharding_constraint stage"
_ONE_TO_ONE = "device_put optimization_barrier"

ELEMENTWISE = frozenset(f"{_ONE_INPUT} {_MORE_INPUTS}".split())
"""Elementwise operations that do little for each element."""

RULES: dict[str, Rule] = (
    dict.fromkeys(ELEMENTWISE, elementwise)
    | for_each(f"{_SPECIAL_FUNCTIONS} {_IDENTITIES}", elementwise)
    | for_each(_ONE_TO_ONE, one_to_one)
)
