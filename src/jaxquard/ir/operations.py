"""What the passes know of primitives: which rearrange, which are cheap, which are linear.

A primitive that is in none of these sets counts as costly: it is never done twice.
"""

import jax.numpy as jnp

from jaxquard.ir.jaxpr_tools import Equation, Literal, is_var, size_bytes

REARRANGING = frozenset(
    "transpose reshape broadcast_in_dim squeeze rev slice expand_dims iota copy copy_p stop_gradient "
    "dynamic_slice split concatenate pad".split()
)

ELEMENTWISE = frozenset(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp conj "
    "convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag "
    "integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not "
    "or population_count pow real reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor".split()
)

_REDUCING = frozenset("reduce_sum reduce_max reduce_min reduce_and reduce_or argmax argmin cumsum cummax".split())

_KEYS = frozenset("random_wrap random_unwrap random_seed random_fold_in random_split random_clone".split())

# Operations that multiply and add.
MATMULS = frozenset(["dot_general", "conv_general_dilated", "ragged_dot_general"])

PASSING = frozenset(["optimization_barrier", "sharding_constraint"])

_LINEAR = frozenset("convert_element_type neg transpose reshape copy copy_p squeeze sharding_constraint".split())

SMALL_BYTES = 64 * 1024
_SMALL_ELEMENTWISE_BYTES = 1024 * 1024


def result_bytes(equation: Equation) -> int:
    """Bytes of all that an equation computes."""
    return sum(size_bytes(var.aval) for var in equation.outvars)


def is_light(equation: Equation) -> bool:
    """Whether it does little for each byte: elementwise, rearranging, reducing, or about keys."""
    name = equation.primitive.name
    return name in ELEMENTWISE or name in REARRANGING or name in _REDUCING or name in _KEYS or name in PASSING


def is_recomputable(equation: Equation, *, from_nothing: bool) -> bool:
    """Whether to compute it wherever it is used, given that its operands are at hand everywhere.

    Args:
        equation: an operation on inputs of the loop, or on other recomputable values.
        from_nothing: whether it depends on no input at all (a mask of iotas, say).
    """
    name = equation.primitive.name
    if equation.effects:
        return False
    if name in REARRANGING or name in _KEYS:
        return True
    if name in ELEMENTWISE:
        return from_nothing or result_bytes(equation) <= _SMALL_ELEMENTWISE_BYTES
    small = result_bytes(equation) <= SMALL_BYTES
    if name in _REDUCING:
        return small and all(size_bytes(atom.aval) <= _SMALL_ELEMENTWISE_BYTES for atom in equation.invars)
    return small and name in ("random_bits", "threefry2x32", "gather")


def is_linear_in_first(equation: Equation) -> bool:
    """Whether f(a + b) = f(a) + f(b) in the first operand, up to rounding, the others being literals."""
    name = equation.primitive.name
    if not has_inexact_types(equation):
        return False
    if name in _LINEAR:
        return len(equation.invars) == 1
    return (
        name in ("mul", "div")
        and len(equation.invars) == 2
        and is_var(equation.invars[0])
        and isinstance(equation.invars[1], Literal)
    )


def has_inexact_types(equation: Equation) -> bool:
    """Whether first operand and results are floating or complex: rounding to integers is not linear."""
    atoms = (*equation.invars[:1], *equation.outvars)
    return all(jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in atoms)


def is_sum(equation: Equation) -> bool:
    """Whether it adds two whole arrays of one type."""
    if equation.primitive.name not in ("add", "add_any"):
        return False
    types = {(atom.aval.shape, atom.aval.dtype) for atom in (*equation.invars, *equation.outvars)}
    return len(types) == 1 and all(map(is_var, equation.invars))
