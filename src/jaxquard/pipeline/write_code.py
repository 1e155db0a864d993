"""Writes the code of one task of a loop around the equations of its body.

What comes from outside gets the names that the body uses: constants and values of other tasks as
inputs, slices of the batch cut from whole leaves. Terms are added to accumulators.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from jaxquard.ir.jaxpr_tools import Equation, Var, is_var, make_jaxpr, new_var, prune, splice, splice_traced, variables
from jaxquard.pipeline.task_code import Index, Local, Outer, TaskCode, Total, Value

if TYPE_CHECKING:
    from jaxquard.pipeline.loop_tasks import LoopTasks


def _cut(leaf: Any, index: Any) -> Any:
    return lax.dynamic_index_in_dim(leaf, index, keepdims=False, allow_negative_indices=False)


class CodeWriter:
    """Writes the code of one task of a loop around the equations of its body."""

    def __init__(self, tasks: "LoopTasks") -> None:
        self.tasks = tasks
        self.inputs: dict[Value, Var] = {}
        self.equations: list[Equation] = []
        self.outputs: list[tuple[Value, Any]] = []
        self.totals: dict[Value, Any] = {}

    def take(self, var: Var) -> None:
        """Makes a value from outside the task available under its name in the body."""
        tasks = self.tasks
        if var not in tasks.outer:
            self.inputs[Local(tasks.number, var)] = var
        elif var in tasks.leaves:
            self._slice(var)
        else:
            self._constant(var)

    def _constant(self, var: Var) -> None:
        atom = self.tasks.outer[var]
        if not is_var(atom):
            value = np.asarray(atom.val, var.aval.dtype)
            self._define(var, lambda: [lax.optimization_barrier(value)], [])
        elif Outer(atom) in self.inputs:
            self._define(var, lambda same: [lax.optimization_barrier(same)], [self.inputs[Outer(atom)]])
        else:
            self.inputs[Outer(atom)] = var

    def _slice(self, var: Var) -> None:
        leaf = self._input(Outer(self.tasks.outer[var]), self.tasks.outer[var])
        cut = lambda leaf, index: [_cut(leaf, index)]  # noqa: E731
        self._define(var, cut, [leaf, self._index()])

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
        """Adds one term to an accumulator."""
        loop = self.tasks.loop
        reduction, total = loop.reductions[target], Total(self.tasks.number, target)
        before = self.totals.get(total)
        if before is None:
            before = self._input(total, self.tasks.equation.outvars[target])
        traced = self.tasks.trace_addition(reduction, before, atom)
        equations, (after,) = splice_traced(traced, [before, atom, self._index()])
        self.equations.extend(equations)
        self.totals[total] = after

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
        )
