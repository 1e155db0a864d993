"""Reads from a jaxpr what its inputs may be: indices of a table, or what a root or a logarithm is taken of.

The equations are read backwards, each by the rule of its primitive: what is asked of a result is asked of the operands
that it consists of.

    b = add a 1 ; c = gather table[512, 64] b ; d = sqrt v
    =>
    a < 512, v > 0
"""

from collections.abc import Sequence
from typing import Any

from jaxquard.ir.jaxpr_tools import Jaxpr, is_var, sub_jaxprs
from jaxquard.pricing.values.make_values import ANY, ValueRange

# What results of these may be follows from all operands.
_PASSED = frozenset(
    "add add_any mul div max min concatenate copy copy_p convert_element_type reshape broadcast_in_dim squeeze "
    "transpose rev reduce_precision reduce_sum reduce_max cumsum slice expand_dims optimization_barrier "
    "sharding_constraint split pvary reshard name".split()
)
# From the first operand, or from all but the first.
_FIRST = frozenset("gather dynamic_slice pad pow".split())
_REST = frozenset("select_n clamp".split())
_ROOTS = frozenset("sqrt rsqrt log log1p pow".split())


def read_ranges(jaxpr: Jaxpr) -> tuple[ValueRange, ...]:
    """Returns what each input of a jaxpr may be."""
    return _read(jaxpr, [ANY] * len(jaxpr.outvars))


def _read(jaxpr: Jaxpr, wanted: Sequence[ValueRange]) -> tuple[ValueRange, ...]:
    known: dict[Any, ValueRange] = {}
    classes = _find_classes(jaxpr)

    def ask(atoms: Sequence[Any], values: Sequence[ValueRange]) -> None:
        for atom, value in zip(atoms, values, strict=False):
            if is_var(atom) and value != ANY:
                known[atom] = _join(known.get(atom, ANY), value)

    ask(jaxpr.outvars, wanted)
    for equation in reversed(jaxpr.eqns):
        name, operands = equation.primitive.name, equation.invars
        results = [known.get(result, ANY) for result in equation.outvars]
        for body in sub_jaxprs(equation):
            # Bodies of loops and branches have the last operands of the equation, and its last results.
            inner = _read(body, results[-len(body.outvars) :]) if len(body.outvars) <= len(results) else ()
            count = min(len(inner), len(operands))
            ask(operands[len(operands) - count :], inner[len(inner) - count :])
        if name in _ROOTS:
            ask(operands[:1], [ValueRange(is_positive=True)])
        if name == "gather" or name.startswith("scatter"):
            ask(operands[1:2], [ValueRange(limit=_table_size(equation))])
        if name == "eq":
            ask(operands, [ValueRange(limit=classes.get(other)) for other in reversed(operands) if is_var(other)])
        passed = _find_passed(name, operands)
        ask(passed, [_join_all(results)] * len(passed))
    return tuple(known.get(var, ANY) for var in jaxpr.invars)


def _find_passed(name: str, operands: Sequence[Any]) -> Sequence[Any]:
    """Returns the operands that the results of an equation consist of; a product of a value with itself is positive."""
    if name in _PASSED and len({id(one) for one in operands}) == len(operands):
        return operands
    return operands[:1] if name in _FIRST else operands[1:] if name in _REST else ()


def _find_classes(jaxpr: Jaxpr) -> dict[Any, int]:
    """Returns the size of each iota, under all of its shapes: what is compared with one is the number of a class."""
    found: dict[Any, int] = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "iota":
            found[equation.outvars[0]] = equation.params["shape"][equation.params["dimension"]]
        elif equation.primitive.name in ("reshape", "broadcast_in_dim", "convert_element_type"):
            operand = equation.invars[0]
            if is_var(operand) and operand in found:
                found[equation.outvars[0]] = found[operand]
    return found


def _table_size(equation: Any) -> int | None:
    """Returns how many indices a gather or scatter may have in each dim that it indexes."""
    numbers, shape = equation.params["dimension_numbers"], equation.invars[0].aval.shape
    dims = getattr(numbers, "start_index_map", None) or getattr(numbers, "scatter_dims_to_operand_dims", ())
    slices = equation.params.get("slice_sizes", (1,) * len(shape))
    sizes = [shape[dim] - slices[dim] + 1 for dim in dims]
    return max(1, min(sizes)) if sizes else None


def _join(one: ValueRange, other: ValueRange) -> ValueRange:
    limits = [values.limit for values in (one, other) if values.limit is not None]
    return ValueRange(is_positive=one.is_positive or other.is_positive, limit=min(limits, default=None))


def _join_all(values: Sequence[ValueRange]) -> ValueRange:
    found = ANY
    for one in values:
        found = _join(found, one)
    return found
