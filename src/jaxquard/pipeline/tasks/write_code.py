"""Writes the code of one task of a loop around the equations of its body.

What comes from outside gets the names that the body uses: constants and values of other tasks as
inputs, microbatches sliced from whole leaves. Terms are added to accumulators; carried values come in and go out.
"""

import functools
from collections.abc import Collection, Container
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    is_var,
    make_jaxpr,
    new_var,
    prune,
    splice,
    splice_traced,
    variables,
)
from jaxquard.ir.typed_shardings import abstract_type
from jaxquard.pipeline.body_uses import find_carry_uses
from jaxquard.pipeline.loop import Loop, Place, Reduction
from jaxquard.pipeline.tasks.task_code import Carried, Index, Local, Outer, TaskCode, Total, Value


class LoopContext:
    """The loop whose tasks are written: its number, its body, and the outer names of the body's inputs."""

    def __init__(self, equation: Equation, number: int) -> None:
        self.equation, self.number = equation, number
        self.loop: Loop = equation.params["loop"]
        self.body: Jaxpr = equation.params["body"].jaxpr
        self.outer = dict(zip(self.body.invars, equation.invars, strict=True))
        self.leaves = set(self.body.invars[self.loop.first_leaf :])
        self.carried = set(self.body.invars[self.loop.num_constants : self.loop.first_leaf])
        self.carry_uses = find_carry_uses(equation)
        self._additions: dict[Any, Any] = {}

    def carry_of(self, var: Var, places: Container[Place]) -> Carried:
        """Returns the carried value that tasks of these places read under a name of the body."""
        (target,) = {
            use.result for use in self.carry_uses if use.var is var and any(reader in places for reader in use.readers)
        }
        return Carried(self.number, target)

    def consumed(self, places: Collection[Place]) -> frozenset[Carried]:
        """Returns the carried values that no task of other places reads."""
        return frozenset(
            Carried(self.number, use.result) for use in self.carry_uses if use.readers and use.readers.issubset(places)
        )

    def trace_addition(self, reduction: Reduction, total: Any, term: Any) -> Any:
        """Traces the addition of a term to an accumulator, once for each pair of types."""
        types = [abstract_type(atom.aval) for atom in (total, term)]
        key = (reduction, *((type_.shape, type_.dtype, type_.sharding) for type_ in types))
        if key not in self._additions:
            add = functools.partial(reduction.add, num_microbatches=self.loop.num_microbatches)
            self._additions[key] = jax.make_jaxpr(lambda *arrays: [add(*arrays)])(*types, np.int32(0))
        return self._additions[key]


class CodeWriter:
    """Writes the code of one task of a loop around the equations of its body.

    Args:
        begun: the accumulators that tasks before this one have added to. In a loop of one microbatch, the first task
            begins with zeros of its own, which XLA leaves out; in others it runs many times, and takes what there is.
    """

    def __init__(self, context: LoopContext, places: Collection[Place], begun: Container[Value] = ()) -> None:
        self.context, self.places, self.begun = context, places, begun
        self.inputs: dict[Value, Var] = {}
        self.equations: list[Equation] = []
        self.outputs: list[tuple[Value, Any]] = []
        self.totals: dict[Value, Any] = {}

    def take(self, var: Var) -> None:
        """Makes a value from outside the task available under its name in the body."""
        if var not in self.context.outer:
            self.inputs[Local(self.context.number, var)] = var
        elif var in self.context.leaves:
            self._slice(var)
        elif var in self.context.carried:
            self.inputs[self.context.carry_of(var, self.places)] = var
        else:
            self._constant(var)

    def _constant(self, var: Var) -> None:
        atom = self.context.outer[var]
        if not is_var(atom):
            value = np.asarray(atom.val, var.aval.dtype)
            self._define(var, lambda: [lax.optimization_barrier(value)], [])
        elif Outer(atom) in self.inputs:
            self._define(var, lambda same: [lax.optimization_barrier(same)], [self.inputs[Outer(atom)]])
        else:
            self.inputs[Outer(atom)] = var

    def _slice(self, var: Var) -> None:
        leaf = self._input(Outer(self.context.outer[var]), self.context.outer[var])
        self._define(var, lambda leaf, index: [_microbatch(leaf, index)], [leaf, self._index()])

    def _index(self) -> Var:
        return self._input(Index(), jax.typeof(np.int32(0)))

    def _input(self, value: Value, like: Any) -> Var:
        if value not in self.inputs:
            self.inputs[value] = new_var(like)
        return self.inputs[value]

    def _define(self, var: Var, fn: Any, inputs: list[Any]) -> None:
        equations, (result,) = splice(fn, inputs)
        last = equations[-1]
        outputs = [var if output is result else output for output in last.outvars]
        self.equations.extend([*equations[:-1], last.replace(outvars=outputs)])

    def accumulate(self, atom: Any, target: int) -> None:
        """Adds one term to an accumulator, or carries it to the next microbatch."""
        reduction, total = self.context.loop.reductions[target], Total(self.context.number, target)
        if reduction.carried is not None:
            self.outputs.append((Carried(self.context.number, target), atom))
            return
        before = self.totals.get(total)
        if before is None:
            before = self._total_before(total, reduction)
        traced = self.context.trace_addition(reduction, before, atom)
        equations, (after,) = splice_traced(traced, [before, atom, self._index()])
        self.equations.extend(equations)
        self.totals[total] = after

    def _total_before(self, total: Total, reduction: Reduction) -> Any:
        like = self.context.equation.outvars[total.target]
        if self.context.loop.num_microbatches > 1 or total in self.begun:
            return self._input(total, like)
        equations, (empty,) = splice(lambda: [reduction.empty(like.aval)], [])
        self.equations.extend(equations)
        return empty

    def code(self, name: str) -> TaskCode:
        outputs = [*self.outputs, *self.totals.items()]
        jaxpr = prune(make_jaxpr(list(self.inputs.values()), self.equations, [atom for _, atom in outputs]))
        used = {var for equation in jaxpr.eqns for var in variables(equation.invars)}
        used |= set(variables(jaxpr.outvars))
        inputs = [(value, var) for value, var in self.inputs.items() if var in used]
        return TaskCode(
            name=name,
            jaxpr=make_jaxpr([var for _, var in inputs], jaxpr.eqns, jaxpr.outvars),
            inputs=tuple(value for value, _ in inputs),
            outputs=tuple(value for value, _ in outputs),
            consumed=self.context.consumed(self.places) & {value for value, _ in inputs},
        )


def _microbatch(leaf: Any, index: Any) -> Any:
    return lax.dynamic_index_in_dim(leaf, index, keepdims=False, allow_negative_indices=False)
