"""The steps of a run for batches of every size, and what else it runs under its plan: evaluations and predictions.

Each is made when it is first asked for, and kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxquard.errors import PlanError
from jaxquard.intraop.step.traced_step import type_of
from jaxquard.planner.forward.keep_forward import keep_forward
from jaxquard.planner.forward.partial_step import PartialStep
from jaxquard.planner.forward.predict import apply_to_function
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.step.apply_plan import AppliedStep, apply_plan
from jaxquard.planner.step.check_arguments import find_difference
from jaxquard.planner.step.other_batches import apply_to_batch, with_rows
from jaxquard.planner.step.train_step import TrainStep, count_rows
from jaxquard.runtime.distributed import DistributedStep
from jaxquard.runtime.remote_array import RemoteArray
from jaxquard.runtime.remote_mesh import RemoteMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRun:
    """A partial step, and as the actors run it."""

    step: PartialStep
    distributed: DistributedStep

    def __call__(self, state: Any, *more: Any) -> Any:
        return self.distributed(self.step.take(state), *more)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSteps:
    """The steps of a run under its plan.

    Attributes:
        start: returns the actors.
    """

    plan: Plan
    problem: PlanProblem
    first: TrainStep
    start: Callable[[], RemoteMesh] = field(repr=False)
    _applied: dict[int, AppliedStep] = field(default_factory=dict, repr=False)
    _training: dict[int, DistributedStep] = field(default_factory=dict, repr=False)
    _evaluating: dict[int, PartialRun] = field(default_factory=dict, repr=False)

    def applied(self, rows: int) -> AppliedStep:
        """Returns the step under the plan for a batch of so many rows, as a plain function.

        Raises:
            PlanError: if the plan was made for another step, or does not fit such a batch.
        """
        if rows not in self._applied:
            self._applied[rows] = self._apply(rows)
        return self._applied[rows]

    def training(self, rows: int) -> DistributedStep:
        """Returns the step for a batch of so many rows."""
        if rows not in self._training:
            applied = self.applied(rows)
            self._training[rows] = self.start().distributed(
                applied.fn, in_shardings=applied.in_shardings, donate_argnums=applied.donate_argnums
            )
        return self._training[rows]

    def evaluating(self, rows: int) -> PartialRun:
        """Returns what makes the loss of a batch of so many rows, and what comes with it."""
        if rows not in self._evaluating:
            step = keep_forward(self.applied(rows), self.args(rows), _choose_loss)
            self._evaluating[rows] = self._run(step)
        return self._evaluating[rows]

    def predicting(self, fn: Callable[..., Any], reads: Sequence[str], args: Sequence[Any]) -> PartialRun:
        """Returns a function of parts of the state and a batch, for types of these."""
        state, rows = self.problem.args[0], self.problem.rows
        paths, tree = jax.tree_util.tree_flatten_with_path(state)
        numbers = jax.tree.unflatten(tree, range(len(paths)))
        leaves = jax.tree.leaves([numbers[name] for name in reads])
        step = apply_to_function(
            fn,
            args,
            self.plan,
            planned=self.applied(rows),
            leaves=leaves,
            names=[jax.tree_util.keystr(paths[leaf][0]) for leaf in leaves],
            rows=rows,
        )
        return self._run(step)

    def count_rows(self, batch: Any) -> int:
        """Returns the rows of a batch for a step, which looks at its types itself if they are the plan's.

        Raises:
            PlanError: if it differs from the plan's in more than its rows.
        """
        leaves = jax.tree.leaves(batch)[:1]
        has_planned = not leaves or getattr(leaves[0], "shape", ())[:1] == (self.problem.rows,)
        return self.problem.rows if has_planned else self.check_batch(batch)

    def check_batch(self, batch: Any) -> int:
        """Checks that a batch differs from the plan's in its rows alone, and returns them.

        Raises:
            PlanError: if it does not.
        """
        rows = count_rows(jax.tree.map(remote_type, batch))
        different = find_difference(with_rows(self.problem.args[1], rows), batch, name="batch")
        if different:
            raise PlanError(
                f"the step was planned for another batch: {different} Batches may differ from the plan's in their rows "
                "alone; plan again for this one."
            )
        return rows

    def _apply(self, rows: int) -> AppliedStep:
        planned_rows, args = self.problem.rows, self.problem.args
        if rows == planned_rows:
            return apply_plan(self.problem.step, args, self.plan)
        planned = self.applied(planned_rows)
        return apply_to_batch(self.first, self.args(rows), self.plan, planned=planned, planned_args=args)

    def args(self, rows: int) -> tuple[Any, ...]:
        """Returns the types of a step's arguments with so many rows."""
        state, batch, *more = self.problem.args
        return state, with_rows(batch, rows), *more

    def _run(self, step: PartialStep) -> PartialRun:
        return PartialRun(step=step, distributed=self.start().distributed(step.fn, in_shardings=step.in_shardings))


def _choose_loss(results: Any) -> dict[str, Any]:
    _, metrics = results
    return {name: metrics[name] for name in ("loss", "aux") if name in metrics}


def remote_type(leaf: Any) -> Any:
    """Returns the type of an array, here or on actors."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, RemoteArray) else type_of(leaf)
