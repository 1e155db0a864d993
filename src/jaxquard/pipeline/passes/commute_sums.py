"""Moves sums of gradients out of the loop (JaxPP, section 3.4).

    loop { g = add_any a b ; total g }      (a on actor 0, b on actor 3)
    =>
    loop { total a ; total b } ; g = add_any total_a total_b

So a weight that several actors use costs one partial sum on each of them and one transfer after
the loop, instead of a transfer per microbatch. The sum may be any tree of additions, with linear
operations (casts, transposes, scaling) between: these move to the terms. Means become sums and a
division after the loop. Results that are the same in every iteration leave it altogether.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    close,
    copy_equation,
    definitions,
    evaluate,
    is_var,
    make_jaxpr,
    new_var,
    prune,
    rename,
    splice,
    splice_traced,
    substitute,
    variables,
)
from jaxquard.ir.operations import is_linear_in_first, is_sum
from jaxquard.ir.step import Step
from jaxquard.ir.typed_shardings import abstract_type
from jaxquard.pipeline.loop import Loop, Place, ReduceOp, Reduction, loop_p


def commute_sums(step: Step) -> Step:
    """Rewrites the results of every loop."""
    equations: list[Equation] = []
    renamed: dict[Var, Any] = {}
    for equation in step.jaxpr.eqns:
        moved = rename(equation, renamed)
        equations.extend(_commute(moved, renamed) if equation.primitive is loop_p else [moved])
    outputs = [substitute(atom, renamed) for atom in step.jaxpr.outvars]
    return replace(step, jaxpr=prune(make_jaxpr(step.jaxpr.invars, equations, outputs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """One summand of a result, and the task that computes it."""

    atom: Any
    place: Place


def _commute(equation: Equation, renamed: dict[Var, Any]) -> list[Equation]:
    """Returns the loop and the equations after it; `renamed` receives the atom for each result."""
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    terms = _Terms(body, loop)
    invariant = _invariant(body, loop)
    written: list[_Term] = []
    targets: list[int] = []
    reductions: list[Reduction] = []
    results: list[Var] = []
    after: list[Equation] = []
    additions = _Additions(loop.num_microbatches)
    for atom, reduction, place, result in zip(
        body.outvars, loop.reductions, loop.result_places, equation.outvars, strict=True
    ):
        if reduction.carried is None and (not is_var(atom) or atom in invariant):
            written_after, renamed[result] = _repeat(equation, atom, reduction)
            after.extend(written_after)
            continue
        groups = [[_Term(atom=atom, place=place)]]
        if reduction.op in (ReduceOp.SUM, ReduceOp.MEAN):
            groups = terms.by_actor(groups[0][0])
        partials = [new_var(result) for _ in groups]
        for group, partial in zip(groups, partials, strict=True):
            written.extend(group)
            targets.extend([len(results)] * len(group))
            results.append(partial)
            reductions.append(_as_sum(reduction))
        written_after, renamed[result] = additions.add_up(partials, reduction)
        after.extend(written_after)
    new_body = make_jaxpr(body.invars, terms.equations, [term.atom for term in written])
    pruned, places = prune_places(new_body, terms.places)
    new_loop = replace(
        loop,
        places=places,
        result_places=tuple(term.place for term in written),
        targets=tuple(targets),
        reductions=tuple(reductions),
    )
    return [equation.replace(outvars=results, params={"body": close(pruned), "loop": new_loop}), *after]


class _Terms:
    """Takes results apart into terms; linear operations that it copies are added to the body."""

    def __init__(self, body: Jaxpr, loop: Loop) -> None:
        assert loop.places is not None
        self.loop = loop
        self.equations = list(body.eqns)
        self.places = list(loop.places)
        self.definition = definitions(body.eqns)
        self.num_uses = Counter(var for equation in body.eqns for var in variables(equation.invars))
        self.num_uses.update(variables(body.outvars))
        self.groups_below: dict[Var, set[int]] = {}

    def by_actor(self, term: _Term) -> list[list[_Term]]:
        """The terms of a sum in groups of one actor each, the first actor to use the weight first."""
        if len(self._groups(term)) == 1:
            return [[term]]
        groups: dict[int, list[_Term]] = {}
        for found in sorted(self._open(term), key=lambda found: found.place.stage):
            groups.setdefault(self.loop.schedule.actor_of(found.place.stage), []).append(found)
        return list(groups.values())

    def _group_of(self, term: _Term) -> int:
        """Returns its actor; or its stage, if weight gradients of two stages of one actor may run in any order."""
        schedule, stage = self.loop.schedule, term.place.stage
        return stage if schedule.splits_backward else schedule.actor_of(stage)

    def _operands(self, term: _Term) -> list[_Term]:
        """Returns the terms whose sum, or linear function, a term is; none if it is needed elsewhere too."""
        position = self.definition.get(term.atom)
        if position is None or self.num_uses[term.atom] > 1:
            return []
        equation = self.equations[position]
        if is_sum(equation):
            return [self._placed(atom, term) for atom in equation.invars]
        return [self._placed(equation.invars[0], term)] if is_linear_in_first(equation) else []

    def _groups(self, root: _Term) -> set[int]:
        """Returns the groups of all terms below one, and notes them for every term on the way."""
        found, waiting = {root.atom: root}, [root]
        while waiting:
            for operand in self._operands(waiting.pop()):
                if is_var(operand.atom) and operand.atom not in found:
                    found[operand.atom] = operand
                    waiting.append(operand)
        for term in sorted(found.values(), key=lambda term: self.definition.get(term.atom, -1)):
            operands = [operand for operand in self._operands(term) if is_var(operand.atom)]
            below = set().union(*(self.groups_below[operand.atom] for operand in operands))
            self.groups_below[term.atom] = below or {self._group_of(term)}
        return self.groups_below[root.atom]

    def _open(self, root: _Term) -> Iterator[_Term]:
        """Yields the terms of a sum, each of one group; linear operations are applied to each of them."""
        waiting: list[tuple[_Term, tuple[Equation, ...]]] = [(root, ())]
        while waiting:
            term, applied = waiting.pop()
            operands = self._operands(term)
            if len(self.groups_below[term.atom]) == 1 or not operands:
                yield self._apply(term, applied)
                continue
            equation = self.equations[self.definition[term.atom]]
            more = applied if is_sum(equation) else (equation, *applied)
            waiting.extend((operand, more) for operand in reversed(operands))

    def _placed(self, atom: Any, user: _Term) -> _Term:
        """A term where it is computed; with its user if every task can compute it."""
        position = self.definition.get(atom)
        place = None if position is None else self.places[position]
        return _Term(atom=atom, place=place or user.place)

    def _apply(self, term: _Term, applied: tuple[Equation, ...]) -> _Term:
        for equation in applied:
            copied = copy_equation(equation, [term.atom, *equation.invars[1:]])
            self.equations.append(copied)
            self.places.append(term.place)
            term = _Term(atom=copied.outvars[0], place=term.place)
        return term


def prune_places(body: Jaxpr, places: list[Place | None]) -> tuple[Jaxpr, tuple[Place | None, ...]]:
    """Drops equations that no output needs, with their places."""
    kept = prune(body)
    place_of = {id(equation): place for equation, place in zip(body.eqns, places, strict=True)}
    return kept, tuple(place_of[id(equation)] for equation in kept.eqns)


def _as_sum(reduction: Reduction) -> Reduction:
    if reduction.op is ReduceOp.MEAN:
        return replace(reduction, op=ReduceOp.SUM)
    return reduction


def _invariant(body: Jaxpr, loop: Loop) -> set[Var]:
    """Variables of the body that are the same in every iteration."""
    known = set(body.invars[: loop.num_constants])
    for equation in body.eqns:
        if not equation.effects and known.issuperset(variables(equation.invars)):
            known.update(equation.outvars)
    return known


def _repeat(equation: Equation, atom: Any, reduction: Reduction) -> tuple[list[Equation], Any]:
    """A result whose every summand is the same, computed once after the loop."""
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    constants = body.invars[: loop.num_constants]
    silent = [inside for inside in body.eqns if not inside.effects]
    alone = prune(make_jaxpr(constants, silent, [atom]))
    op, count = reduction.op, loop.num_microbatches

    def reduced(value: Any) -> Any:
        if op is ReduceOp.STACK:
            return jnp.broadcast_to(value, (count, *value.shape))
        value = value.astype(reduction.dtype)
        return value * jnp.asarray(count, value.dtype) if op is ReduceOp.SUM else value

    call = evaluate(alone)
    equations, (value,) = splice(
        lambda *arrays: [reduced(jnp.asarray(call(*arrays)[0]))], equation.invars[: len(constants)]
    )
    if not is_var(value) or value in equation.invars:  # A result has a buffer of its own.
        made, (value,) = splice(lambda array: [lax.optimization_barrier(array)], [value])
        equations.extend(made)
    return equations, value


class _Additions:
    """Makes results of a loop from their partial sums; each kind of addition is traced once."""

    def __init__(self, num_microbatches: int) -> None:
        self._num_microbatches = num_microbatches
        self._traced: dict[Any, Any] = {}

    def add_up(self, partials: list[Var], reduction: Reduction) -> tuple[list[Equation], Any]:
        """Returns the equations that make a result, and the result."""
        if len(partials) == 1 and reduction.op is not ReduceOp.MEAN:
            return [], partials[0]

        def total(*sums: Any) -> list[Any]:
            value = sums[0]
            for other in sums[1:]:
                value = value + other
            return [reduction.finish(value, self._num_microbatches)]

        types = [abstract_type(partial.aval) for partial in partials]
        key = (reduction, *((type_.shape, type_.dtype, type_.sharding) for type_ in types))
        if key not in self._traced:
            self._traced[key] = jax.make_jaxpr(total)(*types)
        equations, (value,) = splice_traced(self._traced[key], partials)
        return equations, value
