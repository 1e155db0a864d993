"""Computes the weight gradients of a loop over time behind the loop, by one product over all of its steps.

    g = scan[T] (c => z = ... ; c + z^T h)       =>      z[T] = scan[T] (z = ...) ; g = sum over T and batch of z^T h

In the loop, a gradient that the batch is sharded for is summed over devices in every step; behind it, once. One product
of T times the rows is also faster than T of them that each read and write the whole gradient. Both operands are saved
for every step: one of them, the state, the forward has saved already.

Only scans that JAX made by transposing are rewritten. A loop over microbatches that a user wrote adds up gradients to
save memory, and stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    copy_equation,
    definitions,
    evaluate,
    is_var,
    make_jaxpr,
    new_var,
    prune,
    splice,
    substitute,
    users,
)
from jaxquard.ir.open_checkpoints import is_transposed
from jaxquard.ir.source import source_inside

# Linear operations of one operand, which a sum may stand before or behind.
_LINEAR = ("transpose", "reshape", "convert_element_type", "reduce_sum", "squeeze", "neg")


def sum_after_loops(jaxpr: Jaxpr) -> Jaxpr:
    """Returns the step with sums of its backward loops behind them; the same object if there are none."""
    equations: list[Equation] = []
    renamed: dict[Var, Any] = {}
    for equation in jaxpr.eqns:
        equation = equation.replace(invars=[substitute(atom, renamed) for atom in equation.invars])
        sums = _find_sums(equation) if equation.primitive.name == "scan" and is_transposed(equation) else []
        if sums:
            equations += _LoopWriter(equation, sums).write(renamed)
        else:
            equations.append(equation)
    if not renamed:
        return jaxpr
    return prune(make_jaxpr(jaxpr.invars, equations, [substitute(atom, renamed) for atom in jaxpr.outvars]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoopSum:
    """A carry of a loop that only adds up.

    Attributes:
        carry: its number.
        add: the addition.
        source: the product, or the sum, whose results are added up.
        tail: linear operations between the source and the addition, in order.
    """

    carry: int
    add: Equation
    source: Equation
    tail: tuple[Equation, ...]


def _body(scan: Equation) -> Jaxpr:
    return scan.params["jaxpr"].jaxpr


def _find_sums(scan: Equation) -> list[_LoopSum]:
    """Returns the carries that add up products of the body, or sums in it; none of a body that closes over arrays."""
    body, (num_consts, num_carry) = _body(scan), scan_counts(scan.params)
    if scan.params["jaxpr"].consts:
        return []
    defined, used = definitions(body.eqns), users(body.eqns)
    found = []
    for carry in range(num_carry):
        before, after = body.invars[num_consts + carry], body.outvars[carry]
        position = defined.get(after) if is_var(after) else None
        add = None if position is None else body.eqns[position]
        is_sum = add is not None and add.primitive.name in ("add", "add_any") and before in add.invars
        others = sum(atom is before or atom is after for atom in body.outvars)
        if add is None or not is_sum or used[before] != [position] or after in used or others > 1:
            continue
        term = next((atom for atom in add.invars if atom is not before), None)
        source = None if term is None else _find_source(body, defined, term, constants=body.invars[:num_consts])
        if source is not None:
            found.append(_LoopSum(carry=carry, add=add, source=source[0], tail=source[1]))
    return found


def _find_source(
    body: Jaxpr, defined: dict[Var, int], term: Any, *, constants: Sequence[Var]
) -> tuple[Equation, tuple[Equation, ...]] | None:
    """Returns the product or sum behind a term, and what is done to its result; None for anything else.

    One with an operand that is the same in all steps is left where it is, as that need not be saved for each.
    """
    chain: list[Equation] = []
    while is_var(term) and term in defined:
        equation = body.eqns[defined[term]]
        is_product = equation.primitive.name == "dot_general"
        if not is_product and equation.primitive.name not in _LINEAR:
            break
        chain.append(equation)
        if is_product:
            break
        term = equation.invars[0]
    # A sum is the source where no product is: the first in the order of the program.
    while chain and chain[-1].primitive.name not in ("dot_general", "reduce_sum"):
        chain.pop()
    if not chain or not all(is_var(atom) and atom not in constants for atom in chain[-1].invars):
        return None
    return chain[-1], tuple(reversed(chain[:-1]))


class _LoopWriter:
    """Writes a loop without its sums, and the sums behind it."""

    def __init__(self, scan: Equation, sums: Sequence[_LoopSum]):
        self.scan, self.body = scan, _body(scan)
        self.num_consts, self.num_carry = scan_counts(scan.params)
        carries = {one.carry for one in sums}
        self.sums = list(sums)
        self.kept = [carry for carry in range(self.num_carry) if carry not in carries]
        # Values of the body that are needed of every step, and their stacks.
        self.stacks: dict[Var, Var] = {}
        self.saved: list[Var] = []

    def write(self, renamed: dict[Var, Any]) -> list[Equation]:
        """Returns the equations; `renamed` receives what stands for the sums."""
        behind: list[Equation] = []
        for one in self.sums:
            renamed[self.scan.outvars[one.carry]] = self._write_sum(one, behind)
        return [*self._write_loop(), *behind]

    def _write_sum(self, one: _LoopSum, equations: list[Equation]) -> Var:
        """Adds the equations of a sum over all steps of the loop."""
        inputs = [self._stack(atom) for atom in one.source.invars]
        source = one.source.replace(params=_over_steps(one.source))
        made = self._copy(source, inputs, equations)
        for equation in one.tail:
            made = self._copy(equation, [made], equations)
        first = self.scan.invars[self.num_consts + one.carry]
        return self._copy(one.add, [first, made], equations)

    def _copy(self, equation: Equation, inputs: Sequence[Any], equations: list[Equation]) -> Var:
        copied = copy_equation(equation, inputs)
        equations.append(copied.replace(source_info=source_inside(self.scan, equation), ctx=self.scan.ctx))
        return copied.outvars[0]

    def _stack(self, atom: Var) -> Any:
        """Returns the values of all steps: an input of the loop, or a further result."""
        if atom not in self.stacks:
            place = self.body.invars.index(atom) if atom in self.body.invars else -1
            if place >= self.num_consts + self.num_carry:
                return self.scan.invars[place]
            length = self.scan.params["length"]
            self.saved.append(atom)
            self.stacks[atom] = new_var(atom.aval.update(shape=(length, *atom.aval.shape)))
        return self.stacks[atom]

    def _write_loop(self) -> list[Equation]:
        consts, carry = self.num_consts, self.num_carry
        body, scan, num_kept = self.body, self.scan, len(self.kept)
        places = [*range(consts), *(consts + place for place in self.kept), *range(consts + carry, len(body.invars))]
        outputs = [*(body.outvars[place] for place in self.kept), *body.outvars[carry:], *self.saved]
        run = evaluate(prune(make_jaxpr([body.invars[place] for place in places], body.eqns, outputs)))

        def loop(*arrays: Any) -> list[Any]:
            def step(state: Any, entries: Any) -> tuple[list[Any], list[Any]]:
                results = run(*arrays[:consts], *state, *entries)
                return results[:num_kept], results[num_kept:]

            state, entries = list(arrays[consts : consts + num_kept]), list(arrays[consts + num_kept :])
            options = {name: scan.params[name] for name in ("length", "reverse", "unroll")}
            state, stacks = jax.lax.scan(step, state, entries, **options)
            return [*state, *stacks]

        made, results = splice(loop, [scan.invars[place] for place in places])
        outvars = [*(scan.outvars[place] for place in self.kept), *scan.outvars[carry:]]
        final = dict(zip(results, [*outvars, *(self.stacks[atom] for atom in self.saved)], strict=True))
        return [
            one.replace(
                outvars=[substitute(var, final) for var in one.outvars], source_info=scan.source_info, ctx=scan.ctx
            )
            for one in made
        ]


def _over_steps(source: Equation) -> dict[str, Any]:
    """Returns the parameters of a product, or a sum, over all steps: they are the first dim of every operand."""
    if source.primitive.name == "reduce_sum":
        return {**source.params, "axes": (0, *(axis + 1 for axis in source.params["axes"]))}
    contracted, batch = source.params["dimension_numbers"]
    numbers = (
        tuple((0, *(dim + 1 for dim in dims)) for dims in contracted),
        tuple(tuple(dim + 1 for dim in dims) for dims in batch),
    )
    return {**source.params, "dimension_numbers": numbers}
