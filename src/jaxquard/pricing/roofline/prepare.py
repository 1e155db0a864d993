"""Reads a jaxpr once for all shardings: its values by numbers, the work and the partitions of its equations.

Jaxprs that differ in a few copies, as those of strategies do, have most equations in common, whose work is read once.

product     a matrix product or convolution: a kernel of its own
fused       elementwise: computed together with its neighbours (`fuse`)
reduction   the same, but what follows must wait for it
view        another shape or order, a wider type or copies of what is there: read again by each user, never written
kernel      anything else that passes over memory: look-ups, sorts
body        loops, branches, calls
"""

import enum
import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxquard.ir.dependence import Memo, dependences
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var, size_bytes, sub_jaxprs
from jaxquard.ir.operations import ELEMENTWISE, PASSING
from jaxquard.pricing.roofline.body_work import BodyWork, find_body_work
from jaxquard.pricing.roofline.equation_partitions import (
    EquationPartition,
    ProductSizes,
    find_partitions,
    product_sizes,
)

_VIEWS = frozenset(
    "transpose reshape broadcast_in_dim squeeze expand_dims iota copy copy_p stop_gradient slice split rev name pvary "
    "reshard sharding_constraint optimization_barrier accumulated".split()
)
_FUSED = ELEMENTWISE | frozenset(
    ["concatenate", "pad", "random_bits", "threefry2x32", "clamp", "select_and_gather_add"]
)
_COSTLY = frozenset(
    "atan2 cbrt cos div erf exp exp2 expm1 log log1p logistic pow rem rsqrt sin sqrt tan tanh erf_inv".split()
)
# As in the arithmetic of compiled programs (`hlo.work.arithmetic`).
_COSTLY_ARITHMETIC = 10
NO_VALUE = -1
# Jaxprs that are kept prepared: the strategies of a segment share a few.
_MOST_PREPARED = 2048


class WorkKind(enum.Enum):
    """The kind of kernel that an equation becomes a part of."""

    PRODUCT = "product"
    FUSED = "fused"
    REDUCTION = "reduction"
    VIEW = "view"
    KERNEL = "kernel"
    BODY = "body"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EquationWork:
    """The work of an equation, whatever its inputs are called and however they are sharded.

    Attributes:
        input_bytes: of each input; None for a literal.
        output_bytes: of each output.
        partitions: the ways to partition it.
        sizes: of a product.
        arithmetic: operations on elements beside products.
        dtype: of a product's first operand, or of the widest array.
        follows_inputs: whether each output is the input at its place.
    """

    kind: WorkKind
    name: str
    input_bytes: tuple[int | None, ...]
    output_bytes: tuple[int, ...]
    partitions: tuple[EquationPartition, ...] = field(repr=False)
    sizes: ProductSizes | None = None
    body: BodyWork | None = field(default=None, repr=False)
    arithmetic: float = 0.0
    dtype: Any = None
    dtype_name: str = ""
    follows_inputs: bool = False


class PreparedEquation:
    """An equation with all that does not depend on shardings.

    Args:
        inputs: the numbers of its inputs; `NO_VALUE` for a literal.
        outputs: the numbers of its outputs.
    """

    __slots__ = ("arithmetic", "body", "follows_inputs", "inputs", "kind", "name", "outputs", "sizes", "work")

    def __init__(self, work: EquationWork, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        self.work, self.inputs, self.outputs = work, inputs, outputs
        self.kind, self.name, self.sizes, self.body = work.kind, work.name, work.sizes, work.body
        self.arithmetic, self.follows_inputs = work.arithmetic, work.follows_inputs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedJaxpr:
    """A jaxpr with numbered values.

    Attributes:
        sizes_bytes: of each value, whole.
        ranks: the number of dims of each value.
        numbers: of the variables.
        inputs, outputs: the numbers of the jaxpr's own.
        definitions: for each value, the position of the equation that computes it; `NO_VALUE` for an input.
        users: for each value, the positions of the equations that use it.
        first_uses: for each value, the position of the first equation that computes with it or with a view of it; the
            number of equations if none does.
    """

    equations: tuple[PreparedEquation, ...]
    sizes_bytes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    numbers: dict[Var, int] = field(repr=False)
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    definitions: tuple[int, ...] = field(repr=False)
    users: tuple[tuple[int, ...], ...] = field(repr=False)
    first_uses: tuple[int, ...] = field(repr=False)


# The parameters of an equation, which are kept so that no others get their id, and its work.
KnownWork = dict[Hashable, tuple[Any, EquationWork]]


def prepare_equations(jaxpr: Jaxpr, known: KnownWork | None = None) -> PreparedJaxpr:
    """Numbers the values of a jaxpr, and prepares its equations.

    Args:
        known: the work of equations that were prepared before; it is filled.
    """
    numbers: dict[Var, int] = {}
    for var in (*jaxpr.constvars, *jaxpr.invars, *(var for equation in jaxpr.eqns for var in equation.outvars)):
        numbers.setdefault(var, len(numbers))
    reader = _WorkReader({} if known is None else known)
    equations = tuple(
        PreparedEquation(
            reader.read(equation),
            tuple([numbers[atom] if is_var(atom) else NO_VALUE for atom in equation.invars]),
            tuple([numbers[var] for var in equation.outvars]),
        )
        for equation in jaxpr.eqns
    )
    users: list[list[int]] = [[] for _ in numbers]
    definitions = [NO_VALUE] * len(numbers)
    for position, equation in enumerate(equations):
        for number in equation.outputs:
            definitions[number] = position
        for number in set(equation.inputs) - {NO_VALUE}:
            users[number].append(position)
    return PreparedJaxpr(
        equations=equations,
        sizes_bytes=tuple(_size(var.aval) for var in numbers),
        shapes=tuple(tuple(getattr(var.aval, "shape", ())) for var in numbers),
        numbers=numbers,
        inputs=tuple(numbers[var] for var in jaxpr.invars),
        outputs=tuple(numbers[atom] if is_var(atom) else NO_VALUE for atom in jaxpr.outvars),
        definitions=tuple(definitions),
        users=tuple(map(tuple, users)),
        first_uses=tuple(_first_uses(equations, len(numbers))),
    )


def _first_uses(equations: Sequence[PreparedEquation], num_values: int) -> list[int]:
    found = [len(equations)] * num_values
    for position in reversed(range(len(equations))):
        equation = equations[position]
        is_view = equation.kind is WorkKind.VIEW
        first = min((found[number] for number in equation.outputs), default=position) if is_view else position
        for number in equation.inputs:
            if number != NO_VALUE:
                found[number] = min(found[number], first)
    return found


def _size(aval: Any) -> int:
    return size_bytes(aval) if hasattr(aval, "dtype") else 0


class _WorkReader:
    """Reads the work of equations, of those that differ in the names of variables alone once."""

    def __init__(self, known: KnownWork) -> None:
        self._known = known
        self._memo: Memo = {}

    def read(self, equation: Equation) -> EquationWork:
        key = (
            id(equation.params),
            equation.primitive.name,
            tuple([_type_key(atom) for atom in equation.invars]),
            tuple([_type_key(var) for var in equation.outvars]),
        )
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = equation.params, _read_work(equation, self._memo)
        return found[1]


def _type_key(atom: Any) -> Hashable:
    if not is_var(atom):
        value = np.asarray(atom.val)
        return value.shape, value.dtype, value.tobytes()
    aval = atom.aval
    return (aval.shape, aval.dtype) if hasattr(aval, "dtype") else str(aval)


def _read_work(equation: Equation, memo: Memo) -> EquationWork:
    kind = _kind(equation)
    name = equation.primitive.name
    avals = [var.aval for var in (*equation.outvars, *equation.invars) if hasattr(var.aval, "dtype")]
    widest = max(avals, key=_size, default=None)
    dtype = None if widest is None else (equation.invars[0].aval if kind is WorkKind.PRODUCT else widest).dtype
    return EquationWork(
        kind=kind,
        name=name,
        input_bytes=tuple(_size(atom.aval) if is_var(atom) else None for atom in equation.invars),
        output_bytes=tuple(_size(var.aval) for var in equation.outvars),
        partitions=find_partitions(equation, dependences(equation, memo)),
        sizes=product_sizes(equation),
        body=find_body_work(equation) if kind is WorkKind.BODY else None,
        arithmetic=_arithmetic(equation, kind),
        dtype=dtype,
        dtype_name=str(dtype),
        follows_inputs=name in PASSING and len(equation.invars) == len(equation.outvars),
    )


def _kind(equation: Equation) -> WorkKind:
    name = equation.primitive.name
    if product_sizes(equation) is not None:
        return WorkKind.PRODUCT
    if sub_jaxprs(equation) and not name.startswith(("reduce", "scatter", "sort", "cum", "arg")):
        return WorkKind.BODY
    if name in _VIEWS or (name == "convert_element_type" and _is_widening(equation)):
        return WorkKind.VIEW
    if name in _FUSED:
        return WorkKind.FUSED
    return WorkKind.REDUCTION if name.startswith(("reduce_", "arg")) else WorkKind.KERNEL


def _is_widening(equation: Equation) -> bool:
    (atom,), (out,) = equation.invars, equation.outvars
    return is_var(atom) and _size(out.aval) >= _size(atom.aval)


def _arithmetic(equation: Equation, kind: WorkKind) -> float:
    if kind not in (WorkKind.FUSED, WorkKind.REDUCTION) or equation.primitive.name in ("concatenate", "pad"):
        return 0.0
    atoms: Sequence[Var] = equation.invars if kind is WorkKind.REDUCTION else equation.outvars
    elements = max((math.prod(getattr(atom.aval, "shape", ())) for atom in atoms), default=0)
    return float(elements * (_COSTLY_ARITHMETIC if equation.primitive.name in _COSTLY else 1))


class PreparedJaxprs:
    """Jaxprs that are prepared once, for the pricers of many meshes; those that were used last are kept."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[Any, PreparedJaxpr]] = OrderedDict()
        self._work: KnownWork = {}

    def find(self, closed: Any) -> PreparedJaxpr:
        """Returns a closed jaxpr prepared."""
        key = id(closed)
        if key not in self._known:
            # The jaxpr is kept beside, so that no other one gets its id.
            self._known[key] = closed, prepare_equations(closed.jaxpr, self._work)
            if len(self._known) > _MOST_PREPARED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key][1]
