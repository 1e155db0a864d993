"""A step to plan: what it computes with each number of microbatches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jaxquard.errors import PlanError
from jaxquard.intraop.step.traced_step import type_of
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.step.apply_plan import fit_step
from jaxquard.planner.step.one_microbatch import OneMicrobatch, trace_microbatch
from jaxquard.planner.step.train_step import GradientOptimizer, TrainStep, check_reduction, check_scalar, count_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanProblem:
    """A step to plan.

    Attributes:
        name: for the plan.
        args: of the step; types or arrays.
        rows: of the batch of a step.
        counts: the numbers of microbatches that it may have.
        step: with its loop; one from a loss may have any number of microbatches, and be recomputed.
        recomputes: the kinds of recomputation that can be chosen.
    """

    name: str
    args: tuple[Any, ...] = field(repr=False)
    rows: int
    counts: tuple[int, ...]
    step: Callable[..., Any] = field(repr=False)
    recomputes: tuple[Recompute, ...] = (Recompute.NONE,)
    _traced: dict[tuple[int, Recompute], OneMicrobatch] = field(default_factory=dict, repr=False)

    def trace(self, num_microbatches: int, recompute: Recompute = Recompute.NONE) -> OneMicrobatch:
        """Returns the step on one of so many microbatches; traced once."""
        key = num_microbatches, recompute
        if key not in self._traced:
            step = fit_step(self.step, num_microbatches=num_microbatches, recompute=recompute)
            self._traced[key] = trace_microbatch(step, self.args)
        return self._traced[key]


def loss_problem(
    loss: Callable[..., Any],
    optimizer: GradientOptimizer,
    args: Sequence[Any],
    *,
    has_aux: bool = False,
    loss_reduction: str = "mean",
    name: str | None = None,
) -> tuple[PlanProblem, TrainStep]:
    """Makes the problem of a loss and an optimizer, and the step on one microbatch.

    Args:
        args: the parameters and a batch: arrays, or their types.

    Raises:
        PlanError: if the loss is no scalar, or not the mean or sum over the batch that `loss_reduction` says.
    """
    if len(args) != 2:
        raise PlanError(
            f"expected the parameters and a batch as arguments of the loss, found {len(args)} of them. Pass "
            "(params, batch); bind all else with functools.partial."
        )
    params, batch = args
    rows = count_rows(batch)
    step = TrainStep(loss=loss, optimizer=optimizer, has_aux=has_aux, loss_reduction=loss_reduction)
    found = jax.eval_shape(loss, *jax.tree.map(type_of, (params, batch)))
    check_scalar(_scalar_of(found, has_aux, loss), loss)
    check_reduction(step, params, batch)
    state = jax.eval_shape(step.init, jax.tree.map(type_of, params))
    problem = PlanProblem(
        name=name or getattr(loss, "__name__", type(loss).__name__),
        args=(state, jax.tree.map(type_of, batch)),
        rows=rows,
        counts=tuple(count for count in range(1, rows + 1) if rows % count == 0),
        step=step,
        recomputes=tuple(Recompute),
    )
    return problem, step


def step_problem(step: Callable[..., Any], args: Sequence[Any], *, name: str | None = None) -> PlanProblem:
    """Makes the problem of a step of the user's own: its loop has the microbatches that its batch has.

    Raises:
        PlanError: if it has no loop `accumulate_grads(fn, AUTO)`.
    """
    types = jax.tree.map(type_of, tuple(args))
    one = trace_microbatch(step, types)
    count = one.loop.num_microbatches
    leaves = [jnp.shape(atom.aval) for atom in one.loop_leaves]
    rows = max((shape[1] for shape in leaves if len(shape) > 1), default=1)
    return PlanProblem(
        name=name or getattr(step, "__name__", type(step).__name__),
        args=types,
        rows=count * rows,
        counts=(count,),
        step=step,
        _traced={(count, Recompute.NONE): one},
    )


def _scalar_of(found: Any, has_aux: bool, loss: Callable[..., Any]) -> Any:
    if not has_aux:
        return found
    if not isinstance(found, tuple) or len(found) != 2:
        name = getattr(loss, "__name__", "the loss")
        raise PlanError(f"{name} returns {type(found).__name__}, but has_aux=True wants (loss, aux). Return both.")
    return found[0]
