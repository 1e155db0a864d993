"""A step to plan: what it computes with each number of microbatches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxquard.errors import PlanError, UnsplitLossError
from jaxquard.intraop.step.traced_step import type_of, types_of
from jaxquard.ir.array_leaves import advice_for
from jaxquard.ir.jaxpr_tools import is_var, size_bytes
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.step.apply_plan import fit_step
from jaxquard.planner.step.extra_state import ExtraState
from jaxquard.planner.step.microbatch_counts import find_counts
from jaxquard.planner.step.one_microbatch import LoopStep, OneMicrobatch, open_layers, trace_loop
from jaxquard.planner.step.optimizer import GradientOptimizer
from jaxquard.planner.step.step_metrics import StepMetric
from jaxquard.planner.step.train_step import TrainStep, count_rows, is_random_key


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
        loss_reduction: how losses of microbatches become that of the batch, for the plan; "" for a step of the user's.
        note: why there may be one microbatch alone; "" if there may be more.
        given: what the user passed: of a step its arguments, else parameters and a batch; arrays, or types.
        init: makes the state, which is the first argument, from parameters; None for a step of the user's.
    """

    name: str
    args: tuple[Any, ...] = field(repr=False)
    rows: int
    counts: tuple[int, ...]
    step: Callable[..., Any] = field(repr=False)
    recomputes: tuple[Recompute, ...] = (Recompute.NONE,)
    loss_reduction: str = ""
    note: str = ""
    given: tuple[Any, ...] = field(default=(), repr=False)
    init: Callable[[Any], Any] | None = field(default=None, repr=False)
    _loops: dict[tuple[int, Recompute], LoopStep] = field(default_factory=dict, repr=False)
    _traced: dict[tuple[int, Recompute], OneMicrobatch] = field(default_factory=dict, repr=False)

    def trace_loop(self, num_microbatches: int, recompute: Recompute = Recompute.NONE) -> LoopStep:
        """Returns the step with a loop of so many microbatches; traced once."""
        key = num_microbatches, recompute
        if key not in self._loops:
            step = fit_step(self.step, num_microbatches=num_microbatches, recompute=recompute)
            self._loops[key] = trace_loop(step, self.args)
        return self._loops[key]

    def trace(self, num_microbatches: int, recompute: Recompute = Recompute.NONE) -> OneMicrobatch:
        """Returns the step on one of so many microbatches; traced once."""
        key = num_microbatches, recompute
        if key not in self._traced:
            self._traced[key] = open_layers(self.trace_loop(num_microbatches, recompute))
        return self._traced[key]

    def without_count(self, error: UnsplitLossError) -> "PlanProblem":
        """Returns the problem without a number of microbatches for which the loss turned out not to be proved."""
        counts = tuple(count for count in self.counts if count != error.num_microbatches)
        return replace(self, counts=counts, note=self.note or str(error) if len(counts) == 1 else self.note)

    def check_split(self, num_microbatches: int) -> None:
        """Checks that the loss is proved for a number of microbatches.

        Raises:
            UnsplitLossError: if it is not.
        """
        if isinstance(self.step, TrainStep):
            state, *inputs = self.args
            self.step.with_microbatches(num_microbatches).find_split(state["params"], *inputs)

    def state_sizes(self) -> dict[str, int]:
        """Returns the bytes of every argument that a result replaces in the next step, whole, by its name."""
        looped = self.trace_loop(self.counts[0])
        args = zip(looped.arg_names, looped.arg_types, looped.state_results, strict=True)
        return {name: size_bytes(type_) for name, type_, result in args if result is not None}

    def weight_names(self) -> frozenset[str]:
        """Returns the names of the arguments that the loop reads; the rest of the state is the optimizer's."""
        looped = self.trace_loop(self.counts[0])
        jaxpr, position = looped.whole.jaxpr, looped.loop_position
        needed = set(filter(is_var, jaxpr.eqns[position].invars))
        for equation in reversed(jaxpr.eqns[:position]):
            if not needed.isdisjoint(equation.outvars):
                needed.update(filter(is_var, equation.invars))
        return frozenset(name for name, var in zip(looped.arg_names, jaxpr.invars, strict=False) if var in needed)


def loss_problem(
    loss: Callable[..., Any],
    optimizer: GradientOptimizer,
    args: Sequence[Any],
    *,
    has_aux: bool = False,
    loss_reduction: str | None = None,
    rng: Any = None,
    sum_dtype: Any = None,
    metrics: tuple[StepMetric, ...] = (),
    extra: ExtraState | None = None,
    name: str | None = None,
) -> tuple[PlanProblem, TrainStep]:
    """Makes the problem of a loss and an optimizer, and the step on one microbatch.

    Args:
        args: the parameters and a batch: arrays, or their types.
        rng: a key, or its type, if the loss takes one.

    Raises:
        PlanError: if the loss is no scalar.
    """
    _check_given(loss, optimizer, args)
    params, batch = args
    _check_rng(rng)
    rows = count_rows(batch)
    _check_leaves(params, batch)
    step = TrainStep(
        loss=loss,
        optimizer=optimizer,
        has_aux=has_aux,
        has_rng=rng is not None,
        loss_reduction=loss_reduction,
        sum_dtype=sum_dtype,
        metrics=metrics,
        extra=extra,
    )
    types = jax.tree.map(type_of, (params, batch) if rng is None else (params, batch, rng))
    step.reader.gradients(types[0], types[1:] if step.has_rng else types[1])  # An error of the loss is the user's.
    found = find_counts(step, *types)
    state = jax.eval_shape(step.init, types[0])
    problem = PlanProblem(
        name=name or getattr(loss, "__name__", type(loss).__name__),
        args=(state, *types[1:]),
        rows=rows,
        counts=found.counts,
        step=step,
        recomputes=tuple(Recompute),
        loss_reduction=loss_reduction or found.reduction,
        note=found.note,
        given=tuple(args) if rng is None else (*args, rng),
        init=step.init,
    )
    return problem, step


def step_problem(step: Callable[..., Any], args: Sequence[Any], *, name: str | None = None) -> PlanProblem:
    """Makes the problem of a step of the user's own: its loop has the microbatches that its batch has.

    Raises:
        PlanError: if it has no loop `accumulate_grads(fn, AUTO)`.
    """
    types = types_of(args)
    looped = trace_loop(step, types)
    one = open_layers(looped)
    count = one.loop.num_microbatches
    leaves = [jnp.shape(atom.aval) for atom in one.loop_leaves]
    rows = max((shape[1] for shape in leaves if len(shape) > 1), default=1)
    return PlanProblem(
        name=name or getattr(step, "__name__", type(step).__name__),
        args=types,
        rows=count * rows,
        counts=(count,),
        step=step,
        given=tuple(args),
        _loops={(count, Recompute.NONE): looped},
        _traced={(count, Recompute.NONE): one},
    )


def _check_given(loss: Any, optimizer: Any, args: Any) -> None:
    if not callable(loss):
        raise PlanError(f"expected a loss, a function of parameters and a batch, found {loss!r:.80}.")
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        raise PlanError(f"expected an optimizer with init and update, as optax.adam(1e-3) is, found {optimizer!r:.80}.")
    if not isinstance(args, tuple | list) or len(args) != 2:
        found = f"{len(args)} of them" if isinstance(args, tuple | list) else f"a {type(args).__name__}"
        raise PlanError(
            f"expected the parameters and a batch as arguments of the loss, found {found}. Pass (params, batch); bind "
            "all else with functools.partial."
        )


def _check_rng(rng: Any) -> None:
    if rng is None or is_random_key(rng):
        return
    raise PlanError(
        f"rng={rng!r:.80} is no random key. Pass one, such as jax.random.key(0); each microbatch gets its own from it."
    )


def _check_leaves(params: Any, batch: Any) -> None:
    """Checks that all leaves are arrays, and those of the parameters floating numbers."""
    for kind, tree in (("params", params), ("batch", batch)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            name = f"{kind}{jax.tree_util.keystr(path)}"
            try:
                dtype = type_of(leaf).dtype
            except TypeError:
                found = f"an array of {leaf.dtype}" if hasattr(leaf, "dtype") else f"a {type(leaf).__name__}"
                cure = advice_for(leaf, tree, place="in the loss", otherwise="Keep it out; bind it to the loss.")
                raise PlanError(f"{name} is {found}, which JAX has not. {cure}") from None
            if kind == "params" and not jnp.issubdtype(dtype, jnp.inexact):
                raise PlanError(
                    f"{name} is of {dtype}, and has no gradient. Keep it out of the parameters: bind it to the "
                    "loss, or pass it in the batch."
                )
