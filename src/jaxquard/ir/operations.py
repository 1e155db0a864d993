"""Cost and linearity of primitives: which rearrange, which are cheap, which are linear.

A primitive that is in none of these sets counts as costly: it is never done twice.
"""

import jax.numpy as jnp

from jaxquard.ir.dependence.rules import elementwise
from jaxquard.ir.jaxpr_tools import Equation, Literal, is_var, size_bytes

REARRANGING = frozenset(
    "transpose reshape broadcast_in_dim squeeze rev slice expand_dims iota copy copy_p stop_gradient "
    "dynamic_slice split concatenate pad".split()
)

ELEMENTWISE = elementwise.ELEMENTWISE | {"bitcast_convert_type"}

_REDUCING = frozenset("reduce_sum reduce_max reduce_min reduce_and reduce_or argmax argmin cumsum cummax".split())

_KEYS = frozenset("random_wrap random_unwrap random_seed random_fold_in random_split random_clone".split())

# Operations that multiply and add.
MATMULS = frozenset(["dot_general", "conv_general_dilated", "ragged_dot_general"])

PASSING = frozenset(["optimization_barrier", "sharding_constraint"])

# Linear in their only operand.
LINEAR = frozenset("convert_element_type neg transpose reshape copy copy_p squeeze".split())

SMALL_BYTES = 64 * 1024
_SMALL_ELEMENTWISE_BYTES = 1024 * 1024


def result_bytes(equation: Equation) -> int:
    """Returns the bytes of all outputs of an equation."""
    return sum(size_bytes(var.aval) for var in equation.outvars)


def is_light(equation: Equation) -> bool:
    """Returns True if it does little for each byte: elementwise, rearranging, reducing, or about keys."""
    name = equation.primitive.name
    return name in ELEMENTWISE or name in REARRANGING or name in _REDUCING or name in _KEYS or name in PASSING


def is_recomputable(equation: Equation, *, from_nothing: bool) -> bool:
    """Returns True if every task should compute it for itself, given that its operands are at hand everywhere.

    Args:
        equation: an operation on inputs of the loop, or on other recomputable values.
        from_nothing: True if it depends on no input at all (a mask of iotas, say).
    """
    name = equation.primitive.name
    if equation.effects:
        return False
    if name in REARRANGING or name in _KEYS:
        return True
    if name in PASSING:
        return from_nothing
    if name in ELEMENTWISE:
        return from_nothing or result_bytes(equation) <= _SMALL_ELEMENTWISE_BYTES
    small = result_bytes(equation) <= SMALL_BYTES
    if name in _REDUCING:
        return small and all(size_bytes(atom.aval) <= _SMALL_ELEMENTWISE_BYTES for atom in equation.invars)
    return small and name in ("random_bits", "threefry2x32", "gather")


def is_small_constraint(equation: Equation) -> bool:
    """Returns True if it constrains the sharding of a small value."""
    return equation.primitive.name == "sharding_constraint" and result_bytes(equation) <= SMALL_BYTES


def is_linear_in_first(equation: Equation) -> bool:
    """Returns True if f(a + b) = f(a) + f(b) in the first operand, up to rounding, the others being literals."""
    name = equation.primitive.name
    if not has_inexact_types(equation):
        return False
    if name in LINEAR or name == "sharding_constraint":
        return len(equation.invars) == 1
    return (
        name in ("mul", "div")
        and len(equation.invars) == 2
        and is_var(equation.invars[0])
        and isinstance(equation.invars[1], Literal)
    )


def has_inexact_types(equation: Equation) -> bool:
    """Returns True if first operand and results are floating or complex: rounding to integers is not linear."""
    atoms = (*equation.invars[:1], *equation.outvars)
    return all(jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in atoms)


def is_sum(equation: Equation) -> bool:
    """Returns True if it adds two whole arrays of one type."""
    if equation.primitive.name not in ("add", "add_any"):
        return False
    types = {(atom.aval.shape, atom.aval.dtype) for atom in (*equation.invars, *equation.outvars)}
    return len(types) == 1 and all(map(is_var, equation.invars))
