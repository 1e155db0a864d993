"""Finds the scans over layers of a step, and the values that are stacks of layers because of them.

A scan is over layers if its body multiplies its carry by what it scans over, and the latter is no data: weights. A scan
over microbatches scans over the data, and uses the same weights every time. The backward of a scan over layers reads
what its forward stacked, so a scan over stacks that another one found is a scan over layers, too.

A stack is an operand or a result of such a scan along its layers, and whatever meets it in an operation that can be
done layer by layer: casts of weights before the scan, the optimizer's state, the new weights.
"""

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from jaxquard._jax_compat import scan_counts
from jaxquard.intraop.step.layer_rules import layer_form, rearranged, rearranged_stacks, stacks_of
from jaxquard.intraop.step.open_calls import open_calls
from jaxquard.intraop.step.phases import COPIES, depend_on
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var, sub_jaxprs, variables, with_constants_as_inputs
from jaxquard.ir.operations import MATMULS

_CONTRACTIONS = MATMULS | {"gather"}
# The sources of a value in the body of a scan, as bits.
_WEIGHTS, _DATA = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A scan with its body opened.

    Attributes:
        body: its inputs are the constants of the scan, the carries, what is scanned over, and then `more`.
        more: values that the body itself closed over.
    """

    equation: Equation = field(repr=False)
    body: Jaxpr = field(repr=False)
    more: tuple[Any, ...] = field(repr=False)
    num_constants: int
    num_carries: int

    @property
    def length(self) -> int:
        return self.equation.params["length"]

    @property
    def order(self) -> Sequence[int]:
        """The order in which the layers run."""
        places = range(self.length)
        return places[::-1] if self.equation.params["reverse"] else places

    @property
    def scanned(self) -> list[Any]:
        """The operands that it scans over."""
        return self.equation.invars[self.num_constants + self.num_carries :]

    @property
    def stacked_up(self) -> list[Var]:
        """The results that have an entry for every layer."""
        return self.equation.outvars[self.num_carries :]


class Scans:
    """The scans of a jaxpr; a body is opened once."""

    def __init__(self) -> None:
        self._bodies: dict[int, tuple[Any, Jaxpr, tuple[Any, ...]]] = {}

    def find(self, equation: Equation) -> Scan:
        """Returns a scan equation with its body."""
        closed = equation.params["jaxpr"]
        if id(closed) not in self._bodies:
            self._bodies[id(closed)] = (closed, *open_calls(*with_constants_as_inputs(closed), always_barrier=True))
        _, body, more = self._bodies[id(closed)]
        num_constants, num_carries = scan_counts(equation.params)
        return Scan(equation=equation, body=body, more=more, num_constants=num_constants, num_carries=num_carries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """The stacks of a jaxpr, and the scans over them.

    Attributes:
        values: variables that are stacks.
        scans: scans over layers, by their position.
    """

    values: AbstractSet[Var]
    scans: Mapping[int, Scan]


def find_stacks(
    jaxpr: Jaxpr,
    *,
    num_args: int,
    pairs: Sequence[tuple[Var, Any]],
    data: Collection[Var],
    parts: Collection[Var] = (),
) -> Stacks:
    """Finds the scans over layers of a flat jaxpr, and its stacks.

    Args:
        num_args: the number of inputs that may come in parts; the others are constants.
        pairs: state, and what replaces it in the next step; both are stacks, or neither.
        data: the inputs that are data.
        parts: the inputs that are layers of stacks; they may be stacks again.
    """
    scans = {place: equation for place, equation in enumerate(jaxpr.eqns) if equation.primitive.name == "scan"}
    known = Scans()
    found = {place: known.find(equation) for place, equation in scans.items() if equation.params["length"]}
    no_weights = depend_on(jaxpr.eqns, data if pairs else _products(jaxpr))
    opened = {place for place, scan in found.items() if _is_over_layers(scan, no_weights)}
    indexed = _indexed(jaxpr, parts)
    if not opened and not indexed:
        return Stacks(values=set(), scans={})
    values = _spread(jaxpr, found, opened, pairs, set(jaxpr.invars[num_args:]), indexed)
    return Stacks(values=values, scans={place: found[place] for place in sorted(opened)})


def _indexed(jaxpr: Jaxpr, parts: Collection[Var]) -> set[Var]:
    """Returns the parts that a body slices layers out of, one by one."""
    slices = [equation for equation in jaxpr.eqns if equation.primitive.name == "slice"] if parts else []
    found = [(equation.invars[0], rearranged(equation)) for equation in slices if equation.invars[0] in parts]
    return {var for var, form in found if form is not None and len(form.sources) == 1 and var.aval.shape[0] > 1}


def _spread(
    jaxpr: Jaxpr,
    scans: Mapping[int, Scan],
    opened: set[int],
    pairs: Sequence[tuple[Var, Any]],
    fixed: set[Var],
    indexed: set[Var],
) -> set[Var]:
    """Returns all stacks, and adds the scans over layers that it finds to `opened`."""
    values = set(indexed)
    order = [*range(len(jaxpr.eqns)), *reversed(range(len(jaxpr.eqns)))]
    before = -1
    while len(values) + len(opened) > before:
        before = len(values) + len(opened)
        for place in order:
            scan = scans.get(place)
            if scan is None:
                met = _meet(jaxpr.eqns[place], values)
            else:
                met = [*variables(scan.scanned), *scan.stacked_up]
                if place not in opened and values.isdisjoint(met):
                    continue
                opened.add(place)
            values.update(var for var in met if var not in fixed)
        for state, result in pairs:
            if not values.isdisjoint(variables([state, result])):
                values.update(variables([state, result]))
    return values


def _meet(equation: Equation, values: set[Var]) -> list[Var]:
    """Returns the stacks of an equation, if one of its atoms is one."""
    if values.isdisjoint((*variables(equation.invars), *equation.outvars)):
        return []
    if is_copy(equation):
        pairs = zip(equation.invars, equation.outvars, strict=True)
        return [var for pair in pairs if not values.isdisjoint(variables(pair)) for var in variables(pair)]
    stacks = stacks_met(equation)
    return [] if values.isdisjoint(stacks) else stacks


def stacks_met(equation: Equation) -> list[Var]:
    """Returns the variables of an equation that are stacks if one of them is."""
    form = layer_form(equation)
    if form is not None:
        return stacks_of(equation, form)
    moved = rearranged(equation)
    return [] if moved is None else rearranged_stacks(equation, moved)


def is_copy(equation: Equation) -> bool:
    """Returns true if the outputs are the inputs, one for one, and there are several."""
    return equation.primitive.name in COPIES and len(equation.invars) == len(equation.outvars) > 1


def _products(jaxpr: Jaxpr) -> set[Var]:
    """Returns the results of products: they are data in a step without state, where weights have no other mark."""
    is_product = lambda equation: equation.primitive.name in _CONTRACTIONS or bool(sub_jaxprs(equation))  # noqa: E731
    return {var for equation in jaxpr.eqns if is_product(equation) for var in equation.outvars}


def _is_over_layers(scan: Scan, no_weights: Collection[Var]) -> bool:
    """Returns true if the body multiplies data by what is scanned over."""
    sources = [_source_of_constant(atom, no_weights) for atom in scan.equation.invars[: scan.num_constants]]
    sources += [_DATA] * scan.num_carries
    sources += [_DATA if is_var(atom) and atom in no_weights else _WEIGHTS for atom in scan.scanned]
    return _has_product(scan.body, [*sources, *[0] * len(scan.more)])


def _source_of_constant(atom: Any, no_weights: Collection[Var]) -> int:
    return _DATA if is_var(atom) and atom in no_weights else 0


def _has_product(jaxpr: Jaxpr, sources: Sequence[int]) -> bool:
    """Returns true if data is multiplied by weights, given the sources of the inputs."""
    of_var = dict(zip(jaxpr.invars, sources, strict=True))
    for equation in jaxpr.eqns:
        inputs = [of_var.get(atom, 0) if is_var(atom) else 0 for atom in equation.invars]
        if equation.primitive.name in _CONTRACTIONS:
            weights, data = (inputs[:2].count(source) for source in (_WEIGHTS, _DATA))
            mixed = any(source == _WEIGHTS | _DATA for source in inputs)
            if weights and (data or mixed):
                return True
        for inner in sub_jaxprs(equation):
            if _has_product(inner, _sources_inside(equation, inner, inputs)):
                return True
        together = 0
        for source in inputs:
            together |= source
        of_var.update(dict.fromkeys(equation.outvars, together))
    return False


def _sources_inside(equation: Equation, inner: Jaxpr, sources: Sequence[int]) -> list[int]:
    """Returns the sources of an inner jaxpr's inputs: those of the equation's last inputs, where it has fewer."""
    count = len(inner.invars)
    inside = list(sources[-count:]) if count else []
    inside = [0] * (count - len(inside)) + inside
    if equation.primitive.name == "scan":
        num_constants, num_carries = scan_counts(equation.params)
        carries = range(num_constants, num_constants + num_carries)
        inside = [source | _DATA if place in carries else source for place, source in enumerate(inside)]
    return inside
