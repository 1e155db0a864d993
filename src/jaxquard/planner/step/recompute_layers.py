"""Recomputes the activations of a loss layer by layer: its equations in groups, each under `jax.checkpoint`.

    b = dot a w ; c = add a b ; d = dot c v ; e = add c d ; l = sum e
    =>
    c = checkpoint { b = dot a w ; c = add a b } ; e = checkpoint { d = dot c v ; e = add c d } ; l = sum e

A group ends where few activations are alive: between layers that is what one passes on to the next. Groups that repeat
in one order, attention and then an MLP, make up a layer, which is recomputed as one. What follows the last group is
kept, as its backward comes first. The body of a scan with products is a layer; what is under a checkpoint already stays
as it is.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend import core

from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    close,
    definitions,
    is_var,
    make_jaxpr,
    size_bytes,
    sub_jaxprs,
    substitute,
    users,
    variables,
    with_constants_as_inputs,
)
from jaxquard.ir.open_checkpoints import is_checkpoint
from jaxquard.ir.operations import MATMULS
from jaxquard.planner.record.plan import Recompute


def recompute_layers(loss: Callable[..., Any], recompute: Recompute) -> Callable[..., Any]:
    """Returns a loss of the same values whose backward computes activations again.

    Args:
        loss: a function of parameters and a batch.
        recompute: everything inside of a layer (`FULL`), or all but products with weights (`SELECTIVE`).
    """
    if recompute is Recompute.NONE:
        return loss
    policy = None if recompute is Recompute.FULL else jax.checkpoint_policies.dots_with_no_batch_dims_saveable

    @functools.wraps(loss)
    def recomputed(params: Any, batch: Any) -> Any:
        closed, shapes = jax.make_jaxpr(loss, return_shape=True)(params, batch)
        jaxpr, constants = with_constants_as_inputs(closed)
        num_params = len(jax.tree.leaves(params))
        leaves = [*jax.tree.leaves((params, batch)), *constants]
        results = _run(open_jits(jaxpr), leaves, num_params=num_params, policy=policy)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return recomputed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Some equations.

    Attributes:
        is_layer: whether they are recomputed.
    """

    equations: tuple[Equation, ...] = field(repr=False)
    is_layer: bool


def _run(jaxpr: Jaxpr, leaves: Sequence[Any], *, num_params: int, policy: Any) -> list[Any]:
    """Evaluates a jaxpr, its groups under checkpoints."""
    groups = _find_groups(jaxpr, num_params=num_params)
    values: dict[Var, Any] = dict(zip(jaxpr.invars, leaves, strict=True))
    for number, group in enumerate(groups):
        after = [equation for other in groups[number + 1 :] for equation in other.equations]
        later = {var for equation in after for var in variables(equation.invars)}
        later.update(variables(jaxpr.outvars))
        made = [var for equation in group.equations for var in equation.outvars]
        outputs = [var for var in made if var in later]
        used = dict.fromkeys(var for equation in group.equations for var in variables(equation.invars))
        inputs = [var for var in used if var not in set(made)]
        equations = [_with_checkpoint(equation, policy) for equation in group.equations]
        run: Any = core.jaxpr_as_fun(close(make_jaxpr(inputs, equations, outputs)))
        if group.is_layer:
            run = jax.checkpoint(run, policy=policy)
        values.update(zip(outputs, run(*(values[var] for var in inputs)), strict=True))
    return [values[atom] if is_var(atom) else atom.val for atom in jaxpr.outvars]


def open_jits(jaxpr: Jaxpr) -> Jaxpr:
    """Opens calls, but not functions with derivatives of their own, which would lose these."""
    equations: list[Equation] = []
    renamed: dict[Var, Any] = {}

    def visit(inner: Jaxpr) -> None:
        for equation in inner.eqns:
            moved = equation.replace(invars=[substitute(atom, renamed) for atom in equation.invars])
            closed = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
            if closed is None or closed.consts:
                equations.append(moved)
                continue
            copied = _fresh(closed.jaxpr)
            renamed.update(zip(copied.invars, moved.invars, strict=True))
            visit(copied)
            results = [substitute(atom, renamed) for atom in copied.outvars]
            renamed.update(zip(equation.outvars, results, strict=True))

    visit(jaxpr)
    return make_jaxpr(jaxpr.invars, equations, [substitute(atom, renamed) for atom in jaxpr.outvars])


def _fresh(jaxpr: Jaxpr) -> Jaxpr:
    """Returns a jaxpr with variables of its own: one that is called twice is opened twice."""
    build: Any = core.Var
    renamed: dict[Var, Any] = {var: build(var.aval) for var in jaxpr.invars}
    equations = []
    for equation in jaxpr.eqns:
        renamed.update((var, build(var.aval)) for var in equation.outvars)
        equations.append(
            equation.replace(
                invars=[substitute(atom, renamed) for atom in equation.invars],
                outvars=[renamed[var] for var in equation.outvars],
            )
        )
    inputs = [renamed[var] for var in jaxpr.invars]
    return make_jaxpr(inputs, equations, [substitute(atom, renamed) for atom in jaxpr.outvars])


def _find_groups(jaxpr: Jaxpr, *, num_params: int) -> list[_Group]:
    """Splits the equations: what depends on no activation first, then the layers, then the rest."""
    activations = _find_activations(jaxpr, num_params)
    before = [equation for equation in jaxpr.eqns if activations.isdisjoint(equation.outvars)]
    equations = [equation for equation in jaxpr.eqns if not activations.isdisjoint(equation.outvars)]
    stops = _find_stops(equations, activations)
    runs = [tuple(equations[start:stop]) for start, stop in zip([0, *stops], [*stops, len(equations)], strict=True)]
    groups = [_Group(equations=tuple(before), is_layer=False)]
    for run in _join_repeated(runs[:-1]):
        groups.append(_Group(equations=run, is_layer=not any(map(_stays, run))))
    return [*groups, _Group(equations=runs[-1], is_layer=False)]


def _find_activations(jaxpr: Jaxpr, num_params: int) -> set[Var]:
    """Returns the values that depend on parameters and on data; effects stay in order with them."""
    of_params, of_data = set(jaxpr.invars[:num_params]), set(jaxpr.invars[num_params:])
    found: set[Var] = set()
    for equation in jaxpr.eqns:
        operands = variables(equation.invars)
        for source in (of_params, of_data):
            if not source.isdisjoint(operands):
                source.update(equation.outvars)
        found.update(var for var in equation.outvars if (var in of_params and var in of_data) or equation.effects)
    return found


def _find_stops(equations: Sequence[Equation], activations: set[Var]) -> list[int]:
    """Returns where groups end: between products, where few activations are alive, and the fewest bytes of these."""
    products = [place for place, equation in enumerate(equations) if _has_product(equation)]
    if len(products) < 2:
        return []
    alive = _alive(equations, activations)
    fewest = min(len(alive[place]) for place in range(products[0] + 1, products[-1] + 1))
    stops = []
    for first, second in itertools.pairwise(products):
        fitting = [place for place in range(first + 1, second + 1) if len(alive[place]) == fewest]
        if fitting:
            sizes = {place: sum(size_bytes(var.aval) for var in alive[place]) for place in fitting}
            stops.append(min(fitting, key=lambda place: (sizes[place], place)))
    return stops


def _alive(equations: Sequence[Equation], activations: set[Var]) -> list[list[Var]]:
    """Returns for each place the activations that were made before it and are used later."""
    made, used = definitions(equations), users(equations)
    alive: list[list[Var]] = [[] for _ in range(len(equations) + 1)]
    for var, position in made.items():
        for place in range(position + 1, max(used.get(var, [position])) + 1) if var in activations else ():
            alive[place].append(var)
    return alive


def _join_repeated(runs: Sequence[tuple[Equation, ...]]) -> list[tuple[Equation, ...]]:
    """Joins runs that repeat in one order: the shortest order that covers most, from each place on."""
    words: dict[Hashable, int] = {}
    line = [words.setdefault(_word(run), len(words)) for run in runs]
    joined: list[tuple[Equation, ...]] = []
    start = 0
    while start < len(runs):
        period, count = _repetition(line, start)
        for first in range(start, start + period * count, period):
            joined.append(tuple(equation for run in runs[first : first + period] for equation in run))
        start += period * count
    return joined


def _repetition(line: Sequence[int], start: int) -> tuple[int, int]:
    """Returns the length of the order that repeats from a place on, and how often; 1 and 1 if none does."""
    best = 1, 1
    for period in range(1, (len(line) - start) // 2 + 1):
        order, count = line[start : start + period], 1
        while line[start + count * period : start + (count + 1) * period] == order:
            count += 1
        if count > 1 and period * count > best[0] * best[1]:
            best = period, count
    return best


def _word(run: Sequence[Equation]) -> Hashable:
    """Returns what makes two runs alike: the shapes of their products."""
    products = (equation for equation in run if _has_product(equation))
    return tuple(
        (equation.primitive.name, *(atom.aval.shape for atom in (*equation.invars, *equation.outvars)))
        for equation in products
    )


def _has_product(equation: Equation) -> bool:
    if equation.primitive.name in MATMULS:
        return True
    return any(_has_product(inner) for jaxpr in sub_jaxprs(equation) for inner in jaxpr.eqns)


def _stays(equation: Equation) -> bool:
    """Returns True for what is recomputed already, in a way of its own, or has effects."""
    return bool(equation.effects) or is_checkpoint(equation) or equation.primitive.name in ("scan", "while")


def _with_checkpoint(equation: Equation, policy: Any) -> Equation:
    """Returns a scan with its body under a checkpoint, if it multiplies; other equations as they are."""
    if equation.primitive.name != "scan" or equation.effects or not _has_product(equation):
        return equation
    closed = equation.params["jaxpr"]
    if any(map(is_checkpoint, closed.jaxpr.eqns)):
        return equation
    body = jax.checkpoint(core.jaxpr_as_fun(closed), policy=policy, prevent_cse=False)
    types = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in closed.jaxpr.invars]
    return equation.replace(params={**equation.params, "jaxpr": jax.make_jaxpr(body)(*types)})
