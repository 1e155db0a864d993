"""Carries the split of `pipeline_scan` through the step, so that stacked leaves exist only in parts.

    a, b = split_stack w ; ... ; g = join_stack p q ; h = mul g w
    =>
    (w comes as the inputs w0, w1) ; ... ; h0 = mul p w0 ; h1 = mul q w1 ; (h leaves in parts)

First the variables that shall be in parts are found: operands of `split_stack`, results of
`join_stack`, and whatever meets them in an elementwise operation, in both directions. Then each
operation is done part by part where its rule says how, and otherwise on the joined value. The
rules are a table over primitives; the default is to join, which is right for everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax import lax
from jax.extend import core

from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, close, is_var, make_jaxpr, new_var, splice
from jaxquard.ir.operations import ELEMENTWISE
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import Loop, ReduceOp, Reduction, loop_p
from jaxquard.pipeline.stacks import join_stack_p, offsets, split_stack_p

Sizes = tuple[int, ...]

_REDUCTIONS = {"reduce_sum": lax.add_p, "reduce_max": lax.max_p, "reduce_min": lax.min_p}


def split_stacks(step: Step, *, wanted_results: Sequence[Sizes] | None = None, keep_args_whole: bool = False) -> Step:
    """Rewrites the step so that stacked values are in parts wherever that needs no communication.

    Args:
        step: the step, its calls inlined and its invariants hoisted.
        wanted_results: sizes in which the results are wanted, where the caller knows.
        keep_args_whole: leaves the arguments whole whatever meets them.
    """
    equations = _split_loop_outputs(step.jaxpr.eqns)
    jaxpr = make_jaxpr(step.jaxpr.invars, equations, step.jaxpr.outvars)
    num_args = 0 if keep_args_whole else len(step.arg_parts)
    sizes = _find_split(jaxpr, num_args=num_args, wanted=wanted_results)
    if not sizes:
        return replace(step, jaxpr=jaxpr)
    writer = _Writer(sizes=sizes)
    inputs = [var for original in jaxpr.invars for var in writer.define_input(original)]
    for equation in equations:
        writer.write(equation)
    outputs = [atom for original in jaxpr.outvars for atom in writer.result(original)]
    return replace(
        step,
        jaxpr=make_jaxpr(inputs, writer.equations, outputs),
        arg_parts=tuple(sizes.get(var, ()) for var in jaxpr.invars[: len(step.arg_parts)]),
        result_parts=tuple(sizes.get(atom, ()) if is_var(atom) else () for atom in jaxpr.outvars),
    )


def _find_split(
    jaxpr: Jaxpr,
    *,
    num_args: int,
    wanted: Sequence[Sizes] | None,
    tied: Sequence[tuple[Var, Any]] = (),
) -> dict[Var, Sizes]:
    """For each variable that shall be in parts, their sizes along the first dim; tied ones are in parts together."""
    fixed = set(jaxpr.invars[num_args:])
    sizes: dict[Var, Sizes] = {}

    def learn(atom: Any, parts: Sizes) -> bool:
        if not is_var(atom) or atom in sizes or atom in fixed or len(parts) < 2:
            return False
        sizes[atom] = parts
        return True

    for atom, parts in zip(jaxpr.outvars, wanted or [()] * len(jaxpr.outvars), strict=True):
        learn(atom, parts)
    changed = True
    while changed:
        changed = False
        for equation in (*jaxpr.eqns, *reversed(jaxpr.eqns)):
            for atom, parts in _constraints(equation, sizes):
                changed |= learn(atom, parts)
        for pair in tied:
            for one, other in (pair, pair[::-1]):
                changed |= is_var(one) and learn(other, sizes.get(one, ()))
    return sizes


def _constraints(equation: Equation, sizes: dict[Var, Sizes]) -> list[tuple[Any, Sizes]]:
    """Returns the atoms of an equation that must be in parts, and the sizes of these."""
    if equation.primitive is split_stack_p:
        return [(equation.invars[0], equation.params["sizes"])]
    if equation.primitive is join_stack_p:
        return [(equation.outvars[0], equation.params["sizes"])]
    rule = _RULES.get(equation.primitive.name)
    if rule is None:
        return []
    atoms = [*equation.invars, *equation.outvars]
    parts = next((sizes[atom] for atom in atoms if is_var(atom) and atom in sizes), None)
    if parts is None or not rule.applies(equation, parts):
        return []
    return [(atom, parts) for atom in atoms if rule.is_split(equation, atom)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The rule by which an operation is done part by part.

    Attributes:
        applies: True if the operation can be done so, for parts of these sizes.
        is_split: True for an operand or result that is then in parts.
        params: the parameters for a part of this size.
        combine: for a reduction over the split dim, the operation that combines the partial results.
    """

    applies: Callable[[Equation, Sizes], bool]
    is_split: Callable[[Equation, Any], bool]
    params: Callable[[Equation, int], dict[str, Any]] = lambda equation, size: dict(equation.params)
    combine: core.Primitive | None = None


def _shape(equation: Equation) -> tuple[int, ...]:
    return equation.outvars[0].aval.shape


def _same_shape(equation: Equation, atom: Any) -> bool:
    return bool(atom.aval.shape) and atom.aval.shape[0] == _shape(equation)[0]


def _elementwise_applies(equation: Equation, parts: Sizes) -> bool:
    shape = _shape(equation)
    return (
        bool(shape)
        and sum(parts) == shape[0]
        and all(atom.aval.shape in ((), shape) for atom in (*equation.invars, *equation.outvars))
    )


def _broadcast_applies(equation: Equation, parts: Sizes) -> bool:
    shape, dims = equation.params["shape"], equation.params["broadcast_dimensions"]
    operand = equation.invars[0].aval.shape
    keeps = bool(dims) and dims[0] == 0 and operand[0] == shape[0]
    return bool(shape) and sum(parts) == shape[0] and (0 not in dims or keeps or operand[0] == 1)


def _with_first_size(name: str) -> Callable[[Equation, int], dict[str, Any]]:
    def params(equation: Equation, size: int) -> dict[str, Any]:
        return {**equation.params, name: (size, *equation.params[name][1:])}

    return params


def _reduction_rules() -> dict[str, "_Rule"]:
    return {
        name: _Rule(
            applies=lambda equation, parts: (
                bool(equation.invars[0].aval.shape) and sum(parts) == equation.invars[0].aval.shape[0]
            ),
            is_split=lambda equation, atom: atom is equation.invars[0] or 0 not in equation.params["axes"],
            combine=combine,
        )
        for name, combine in _REDUCTIONS.items()
    }


def _keeps_first_dim(equation: Equation, parts: Sizes) -> bool:
    before, after = equation.invars[0].aval.shape, _shape(equation)
    return bool(before) and bool(after) and before[0] == after[0] == sum(parts)


def _transpose_applies(equation: Equation, parts: Sizes) -> bool:
    return _keeps_first_dim(equation, parts) and equation.params["permutation"][0] == 0


def _dot_applies(equation: Equation, parts: Sizes) -> bool:
    _, (left, right) = equation.params["dimension_numbers"]
    return bool(left) and left[0] == 0 and right[0] == 0 and _shape(equation)[0] == sum(parts)


def _random_applies(equation: Equation, parts: Sizes) -> bool:
    keys = equation.invars[0].aval.shape
    return bool(keys) and keys[0] == sum(parts)


_ALL: Callable[[Equation, Any], bool] = lambda equation, atom: True  # noqa: E731
_RULES: dict[str, _Rule] = {
    **{name: _Rule(applies=_elementwise_applies, is_split=_same_shape) for name in ELEMENTWISE},
    **_reduction_rules(),
    "broadcast_in_dim": _Rule(
        applies=_broadcast_applies,
        is_split=lambda equation, atom: (
            atom is equation.outvars[0]
            or (0 in equation.params["broadcast_dimensions"] and _same_shape(equation, atom))
        ),
        params=_with_first_size("shape"),
    ),
    "reshape": _Rule(applies=_keeps_first_dim, is_split=_ALL, params=_with_first_size("new_sizes")),
    "transpose": _Rule(applies=_transpose_applies, is_split=_ALL),
    "dot_general": _Rule(applies=_dot_applies, is_split=_ALL),
    "random_bits": _Rule(applies=_random_applies, is_split=_ALL),
    "random_wrap": _Rule(applies=_keeps_first_dim, is_split=_ALL),
    "random_unwrap": _Rule(applies=_keeps_first_dim, is_split=_ALL),
}


class _Writer:
    """Writes equations over parts; knows for each variable its parts, its joined form, or both."""

    def __init__(self, *, sizes: dict[Var, Sizes]) -> None:
        self.sizes = sizes
        self.parts: dict[Var, list[Any]] = {}
        self.whole: dict[Var, Any] = {}
        self.equations: list[Equation] = []

    def define_input(self, var: Var) -> list[Var]:
        if var not in self.sizes:
            self.whole[var] = var
            return [var]
        self.parts[var] = [new_var(_part_type(var, size)) for size in self.sizes[var]]
        return self.parts[var]

    def result(self, atom: Any) -> list[Any]:
        if is_var(atom) and atom in self.sizes:
            return self.pieces_of(atom, self.sizes[atom])
        return [self.joined(atom)]

    def joined(self, atom: Any) -> Any:
        if not is_var(atom):
            return atom
        if atom not in self.whole:
            sizes = tuple(part.aval.shape[0] for part in self.parts[atom])
            self.whole[atom] = self._call(lambda *parts: [lax.concatenate(parts, 0)], self.parts[atom])[0]
            assert sum(sizes) == atom.aval.shape[0]
        return self.whole[atom]

    def pieces_of(self, atom: Any, sizes: Sizes) -> list[Any]:
        known = self.parts.get(atom) if is_var(atom) else None
        if known is not None and tuple(part.aval.shape[0] for part in known) == sizes:
            return known
        pieces = []
        for start, size in zip(offsets(sizes), sizes, strict=True):
            piece = lambda stack, start=start, size=size: [lax.slice_in_dim(stack, start, start + size)]  # noqa: E731
            pieces.append(self._call(piece, [self.joined(atom)])[0])
        if is_var(atom) and known is None:
            self.parts[atom] = pieces
        return pieces

    def write(self, equation: Equation) -> None:
        if equation.primitive is split_stack_p:
            pieces = self.pieces_of(equation.invars[0], equation.params["sizes"])
            self.whole.update(zip(equation.outvars, pieces, strict=True))
            return
        if equation.primitive is join_stack_p:
            self.parts[equation.outvars[0]] = [self.joined(atom) for atom in equation.invars]
            return
        parts = next(
            (self.sizes[atom] for atom in (*equation.invars, *equation.outvars) if is_var(atom) and atom in self.sizes),
            None,
        )
        rule = _RULES.get(equation.primitive.name)
        if parts is not None and rule is not None and rule.applies(equation, parts):
            self._write_parts(equation, rule, parts)
        else:
            self._write_whole(equation)

    def _write_whole(self, equation: Equation) -> None:
        outputs = [new_var(var) for var in equation.outvars]
        self.equations.append(equation.replace(invars=[self.joined(atom) for atom in equation.invars], outvars=outputs))
        self.whole.update(zip(equation.outvars, outputs, strict=True))

    def _write_parts(self, equation: Equation, rule: _Rule, sizes: Sizes) -> None:
        inputs = [
            self.pieces_of(atom, sizes) if rule.is_split(equation, atom) else [self.joined(atom)] * len(sizes)
            for atom in equation.invars
        ]
        (output,) = equation.outvars
        pieces = []
        for part, size in enumerate(sizes):
            aval = _part_type(output, size) if rule.is_split(equation, output) else output.aval
            piece = new_var(aval)
            operands = [atoms[part] for atoms in inputs]
            self.equations.append(
                equation.replace(invars=operands, outvars=[piece], params=rule.params(equation, size))
            )
            pieces.append(piece)
        if rule.is_split(equation, output):
            self.parts[output] = pieces
        else:
            assert rule.combine is not None
            self.whole[output] = self._combine(rule.combine, pieces)

    def _combine(self, combine: core.Primitive, pieces: list[Any]) -> Any:
        total = pieces[0]
        for piece in pieces[1:]:
            total = self._call(lambda left, right: [combine.bind(left, right)], [total, piece])[0]
        return total

    def _call(self, fn: Callable[..., Any], inputs: list[Any]) -> list[Any]:
        """Appends the equations of a small function."""
        equations, results = splice(fn, inputs)
        self.equations.extend(equations)
        return results


def _part_type(var: Var, size: int) -> Any:
    return var.aval.update(shape=(size, *var.aval.shape[1:]))


def _split_loop_outputs(equations: Sequence[Equation]) -> list[Equation]:
    """Loop outputs that join stacks in every iteration are reduced part by part and joined after."""
    written = []
    for equation in equations:
        written.extend(_split_outputs(equation) if equation.primitive is loop_p else [equation])
    return written


def _split_outputs(equation: Equation) -> list[Equation]:
    body, loop = equation.params["body"].jaxpr, equation.params["loop"]
    sizes = _find_split(body, num_args=loop.first_leaf, wanted=None, tied=_carried_pairs(equation))
    if not sizes:
        return [equation]
    writer = _Writer(sizes=sizes)
    inputs, outer_inputs, splits = _split_inputs(equation, writer)
    for inside in body.eqns:
        writer.write(inside)
    carried = _CarriedParts(loop, [writer.parts.get(var) for var in body.invars])
    outputs: list[Any] = []
    reductions, results, joins = [], [], []
    for atom, reduction, result in zip(body.outvars, loop.reductions, equation.outvars, strict=True):
        parts = sizes.get(atom) if is_var(atom) else None
        if reduction.carried is not None:  # In the parts that it comes in.
            parts = sizes.get(body.invars[loop.num_constants + reduction.carried])
        if parts is None or reduction.op is ReduceOp.STACK:
            outputs.append(writer.joined(atom))
            results.append(result)
            reductions.extend(carried.reductions(reduction, 1))
            continue
        pieces = writer.pieces_of(atom, parts)
        outer = [new_var(result.aval.update(shape=piece.aval.shape)) for piece in pieces]
        outputs.extend(pieces)
        results.extend(outer)
        reductions.extend(carried.reductions(reduction, len(parts)))
        joins.append(_new_equation(join_stack_p, outer, [result], parts, equation))
    jaxpr = make_jaxpr(inputs, writer.equations, outputs)
    new_loop = replace(
        loop, num_constants=carried.num_constants, carry_names=carried.names, reductions=tuple(reductions)
    )
    params = {"body": close(jaxpr), "loop": new_loop}
    return [*splits, equation.replace(invars=outer_inputs, outvars=results, params=params), *joins]


def _carried_pairs(equation: Equation) -> list[tuple[Var, Any]]:
    """Returns each carried input of a loop's body with the output that takes its place."""
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    return [
        (body.invars[loop.num_constants + reduction.carried], atom)
        for atom, reduction in zip(body.outvars, loop.reductions, strict=True)
        if reduction.carried is not None
    ]


class _CarriedParts:
    """The carried inputs of a loop in parts, numbered anew."""

    def __init__(self, loop: Loop, parts: Sequence[Sequence[Var] | None]) -> None:
        """Takes the parts of each input of the body; None for a whole one."""
        counts = [1 if of_input is None else len(of_input) for of_input in parts]
        carried = counts[loop.num_constants : loop.first_leaf]
        self.num_constants = sum(counts[: loop.num_constants])
        self.names = tuple(name for name, count in zip(loop.carry_names, carried, strict=True) for _ in range(count))
        self._first = offsets(tuple(carried))

    def reductions(self, reduction: Reduction, count: int) -> list[Reduction]:
        """Returns the reductions of the parts of an output."""
        if reduction.carried is None:
            return [reduction] * count
        first = self._first[reduction.carried]
        return [replace(reduction, carried=first + part) for part in range(count)]


def _split_inputs(equation: Equation, writer: _Writer) -> tuple[list[Var], list[Any], list[Equation]]:
    """Returns the inputs of a loop's body and of the loop, stacked ones in parts, and what splits these."""
    inputs: list[Var] = []
    outer_inputs: list[Any] = []
    splits: list[Equation] = []
    for var, atom in zip(equation.params["body"].jaxpr.invars, equation.invars, strict=True):
        parts = writer.define_input(var)
        outer = [atom] if len(parts) == 1 else [new_var(part) for part in parts]
        if len(parts) > 1:
            splits.append(_new_equation(split_stack_p, [atom], outer, writer.sizes[var], equation))
        inputs.extend(parts)
        outer_inputs.extend(outer)
    return inputs, outer_inputs, splits


def _new_equation(
    primitive: core.Primitive, inputs: list[Any], outputs: list[Var], sizes: Sizes, like: Equation
) -> Equation:
    build: Any = core.new_jaxpr_eqn
    return build(inputs, outputs, primitive, {"sizes": sizes}, frozenset(), like.source_info, like.ctx)
