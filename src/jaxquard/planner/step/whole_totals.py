"""Sums over the rows of a whole batch that microbatches read: the denominator of a mean over a mask.

    s = sum losses ; n = sum mask ; l = div s n
    =>
    n = sum over microbatches of { n = sum mask } ; accumulate_grads { s = sum losses ; l = div s n }

A loss that divides by a sum over rows is no sum over microbatches. But where parameters do not change that sum, it can
be computed for the whole batch in front of the loop; given as a number, it leaves a loss that is. The same holds for
whatever follows from such sums alone, such as `maximum(n, 1)`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    evaluate,
    is_var,
    make_jaxpr,
    new_var,
    prune,
    rename,
    variables,
)
from jaxquard.ir.rows import Kind, Law, RowRelations

_TOTALS = (Kind.SUM, Kind.MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTotals:
    """A loss on one microbatch that reads totals of the whole batch as numbers.

    Attributes:
        head: from the inputs of the loss beside the parameters, and its constants, to the totals of a microbatch.
        laws: of these, over microbatches.
        middle: from the totals of the batch, and the constants, to the values that the loss reads.
        body: from the inputs of the loss, its constants and these values to its results.
        constants: arrays that the loss closes over.
        divides: floating values are divided by the number of microbatches, so that a mean over these is a
            mean over the batch.
    """

    head: Jaxpr = field(repr=False)
    laws: tuple[Law, ...]
    middle: Jaxpr = field(repr=False)
    body: Jaxpr = field(repr=False)
    constants: tuple[Any, ...] = field(repr=False)
    divides: bool

    def compute(self, leaves: Sequence[Any], num_microbatches: int) -> list[Any]:
        """Returns the values of the batch.

        Args:
            leaves: inputs of the loss beside the parameters; microbatches are stacked along a new first dim.
        """
        by_part = jax.vmap(lambda *inputs: evaluate(self.head)(*inputs, *self.constants))(*leaves)
        totals = [_reduce(found, law) for found, law in zip(by_part, self.laws, strict=True)]
        values = evaluate(self.middle)(*totals, *self.constants)
        return [self.share(value, num_microbatches) for value in values]

    def share(self, value: Any, num_microbatches: int) -> Any:
        """Returns the value as microbatches get it."""
        is_divided = self.divides and jnp.issubdtype(value.dtype, jnp.floating)
        return value / jnp.asarray(num_microbatches, value.dtype) if is_divided else value


def _reduce(by_part: Any, law: Law) -> Any:
    if law.kind is Kind.MAX:
        return jnp.max(by_part, axis=0)
    total = jnp.sum(by_part, axis=0, dtype=by_part.dtype)
    return total if law.has_scale(1.0) else total * jnp.asarray(law.scale, total.dtype)


def hoist_totals(
    relations: RowRelations, *, num_params: int, constants: Sequence[Sequence[Any]], divides: bool
) -> tuple[WholeTotals, WholeTotals] | None:
    """Takes totals of the batch out of a loss, for the whole batch and for a part.

    Args:
        relations: of the loss; its first inputs are the parameters.
        constants: of the whole and of the part.
        divides: as of `WholeTotals`.

    Returns:
        The loss of the whole and of the part; None if there are no such totals.
    """
    whole = relations.whole
    finder = _TotalFinder(relations, whole.invars[:num_params])
    if not finder.values:
        return None
    known = whole.invars[len(whole.invars) - len(constants[0]) :]
    middle = prune(make_jaxpr([*finder.totals, *known], whole.eqns, finder.values))
    used = {var for equation in middle.eqns for var in variables(equation.invars)} | set(middle.outvars)
    totals = [var for var in finder.totals if var in used]
    equations = [one for one in middle.eqns if set(finder.totals).isdisjoint(one.outvars)]
    middle = make_jaxpr([*totals, *known], equations, finder.values)
    laws = tuple(relations.law_of(var) for var in totals)

    def rest(jaxpr: Jaxpr, of: Callable[[Var], Any], consts: Sequence[Any]) -> WholeTotals:
        values = {of(var): new_var(of(var)) for var in finder.values}
        derived = {of(var) for var in finder.values if relations.law_of(var).is_mixed}
        outputs = [values[atom] if is_var(atom) and atom in derived else atom for atom in jaxpr.outvars]
        equations = [rename(equation, values) for equation in jaxpr.eqns]
        body = prune(make_jaxpr([*jaxpr.invars, *values.values()], equations, outputs))
        head = prune(make_jaxpr(jaxpr.invars[num_params:], jaxpr.eqns, [of(var) for var in totals]))
        return WholeTotals(
            head=head, laws=laws, middle=prune(middle), body=body, constants=tuple(consts), divides=divides
        )

    return rest(whole, lambda var: var, constants[0]), rest(relations.part, relations.twins.__getitem__, constants[1])


def _has_exact_scale(law: Law, var: Var) -> bool:
    """Returns true unless whole numbers would be multiplied by a fraction."""
    return jnp.issubdtype(var.aval.dtype, jnp.inexact) or law.scale == round(law.scale)


class _TotalFinder:
    """Finds the values that microbatches read.

    Attributes:
        totals: sums and maxima over rows that parameters do not change.
        values: of these, and of what follows from them alone, those that something else reads.
    """

    def __init__(self, relations: RowRelations, params: Sequence[Var]) -> None:
        self.relations = relations
        self.changed = set(params)
        self.totals: dict[Var, None] = {}
        self.derived: set[Var] = set()
        whole = relations.whole
        for equation in whole.eqns:
            self._see(equation)
        read = [equation for equation in whole.eqns if self.derived.isdisjoint(equation.outvars)]
        wanted = [var for equation in read for var in variables(equation.invars)]
        of_whole = {var: None for var in wanted if self._is_total(var) and not self._is_summed(var)}
        outputs = {var: None for var in variables(whole.outvars) if var in self.derived}
        self.values = list(of_whole | outputs)

    def _see(self, equation: Equation) -> None:
        inputs = variables(equation.invars)
        if not self.changed.isdisjoint(inputs):
            self.changed.update(equation.outvars)
            return
        laws = [self.relations.law_of(var) for var in equation.outvars]
        pairs = zip(laws, equation.outvars, strict=True)
        if all(law.kind in _TOTALS and _has_exact_scale(law, var) for law, var in pairs):
            self.totals.update(dict.fromkeys(equation.outvars))
            return
        follows = any(map(self._is_total, inputs)) and all(
            self._is_total(var) or self.relations.is_same(var) for var in inputs
        )
        if follows and len(laws) == 1 and self.relations.has_one_shape(equation.outvars[0]):
            self.derived.update(equation.outvars)

    def _is_total(self, var: Var) -> bool:
        return var in self.totals or var in self.derived

    def _is_summed(self, var: Var) -> bool:
        """Returns true for a total that is only scaled or added to others, and not read as a number."""
        users = [one for one in self.relations.whole.eqns if var in one.invars]
        return var in self.totals and all(self._is_total(one.outvars[0]) for one in users)
