"""A training step from a loss and an optimizer: microbatches, sums of gradients, an update.

    state, metrics = train_step(state, batch)

The loss is a mean over the rows of its batch, or a sum. Nothing in its types shows which, so the caller says it; it
decides how the losses and gradients of microbatches become those of the batch. `check_reduction` looks at numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.errors import PlanError
from jaxquard.pipeline.loop import accumulate_grads
from jaxquard.planner.step.extra_state import ExtraState, StepInfo
from jaxquard.planner.step.optimizer import GradientOptimizer, update_params
from jaxquard.planner.step.step_metrics import StepMetric, step_metrics
from jaxquard.schedules import AUTO, Schedule

# How losses of parts of a batch become that of the batch.
LOSS_REDUCTIONS = ("mean", "sum")
# Sums of float32 in another order differ by less.
_TOLERANCE = 1e-3
# The same for bfloat16 and float16.
_SHORT_TOLERANCE = 3e-2


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class TrainStep:
    """A training step: `state, metrics = step(state, batch)`.

    The state is a dict of `params`, `opt_state` and `step`, the number of steps that were taken, and `extra` if it has
    any. The metrics have the `loss` and, with `has_aux`, `aux`: arrays with the rows of the batch have all of them, in
    order; other floating numbers are reduced as the loss is, integers summed, and all else is stacked.

    Attributes:
        loss: a function of the parameters and a batch; with `has_aux` it returns the loss and more.
        num_microbatches: into which the rows of every batch are split, in order.
        loss_reduction: "mean" or "sum": what the loss is over the rows of its batch.
        sum_dtype: in which gradients, and floating numbers that are reduced as the loss is, are summed over
            microbatches; None for float32 where parameters have fewer bits, else for their own. The optimizer gets
            gradients of the parameters' dtypes.
        metrics: that are made on request.
        extra: state of the user's own.
        schedule: of the loop; `AUTO` until a plan is applied.
    """

    loss: Callable[..., Any]
    optimizer: GradientOptimizer
    num_microbatches: int = 1
    has_aux: bool = False
    loss_reduction: str = "mean"
    sum_dtype: Any = None
    metrics: tuple[StepMetric, ...] = ()
    extra: ExtraState | None = None
    schedule: Schedule = AUTO

    def __post_init__(self) -> None:
        if self.loss_reduction not in LOSS_REDUCTIONS:
            raise PlanError(
                f"loss_reduction={self.loss_reduction!r} is not known. Say what the loss is over the rows of its "
                'batch: "mean" or "sum".'
            )
        _check_sum_dtype(self.sum_dtype)

    def with_microbatches(self, num_microbatches: int) -> "TrainStep":
        """Returns the same step for another number of microbatches."""
        return replace(self, num_microbatches=num_microbatches)

    def with_loss(self, loss: Callable[..., Any]) -> "TrainStep":
        """Returns the same step for another loss, such as one that computes activations again."""
        return replace(self, loss=loss)

    def init(self, params: Any) -> dict[str, Any]:
        """Returns the first state."""
        state = {"params": params, "opt_state": self.optimizer.init(params), "step": jnp.zeros((), jnp.int32)}
        return state if self.extra is None else {**state, "extra": self.extra.init(params)}

    def __call__(self, state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        params = state["params"]
        microbatches = split_rows(batch, self.num_microbatches)
        grad = jax.value_and_grad(self._checked_loss, has_aux=self.has_aux)

        def gradients(microbatch: Any) -> tuple[Any, ...]:
            value, grads = grad(params, microbatch)
            loss, aux = value if self.has_aux else (value, None)
            return grads, loss, aux, aux if self.extra else None

        row_dims = self._aux_row_dims(params, batch, microbatches)
        reduce = (self.loss_reduction, self.loss_reduction, self._aux_reductions(row_dims), "stack")
        loop = accumulate_grads(gradients, self.schedule, reduce, sum_dtype=self._find_sum_dtype(params))
        grads, loss, aux, microbatch_aux = loop(microbatches)
        aux = jax.tree.map(lambda leaf, of: leaf if of.row_dim is None else _join_rows(leaf, of.row_dim), aux, row_dims)
        grads = jax.tree.map(lambda grad, param: grad.astype(jnp.asarray(param).dtype), grads, params)
        updated, opt_state = update_params(self.optimizer, grads, state["opt_state"], params, loss=loss)
        step = state["step"]
        new_state = {"params": updated, "opt_state": opt_state, "step": step + 1}
        if self.extra is not None:
            info = StepInfo(params=updated, grads=grads, loss=loss, aux=aux, microbatch_aux=microbatch_aux, step=step)
            new_state["extra"] = self.extra.next(state["extra"], info)
        metrics = {"loss": loss, **step_metrics(self.metrics, grads=grads, opt_state=opt_state, step=step)}
        return new_state, {**metrics, "aux": aux} if self.has_aux else metrics

    def _find_sum_dtype(self, params: Any) -> Any:
        """Returns the dtype of sums; None for those of what is summed."""
        dtypes = [leaf.dtype for leaf in _floats(params)]
        if self.sum_dtype is not None or all(jnp.finfo(dtype).bits >= 32 for dtype in dtypes):
            return self.sum_dtype
        return jnp.result_type(jnp.float32, *dtypes)

    def _checked_loss(self, params: Any, microbatch: Any) -> Any:
        found = self.loss(params, microbatch)
        check_scalar(found[0] if self.has_aux else found, self.loss)
        return found

    def _aux_row_dims(self, params: Any, batch: Any, microbatches: Any) -> Any:
        """Finds which dim of what comes with the loss are the rows: the one that is longer on the whole batch."""
        if not self.has_aux:
            return None
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), microbatches)
        _, aux = jax.eval_shape(self.loss, params, one)
        if self.num_microbatches == 1:
            rows = count_rows(batch)
            return jax.tree.map(lambda leaf: _AuxLeaf(dtype=leaf.dtype, row_dim=_first(leaf.shape, rows)), aux)
        _, whole = jax.eval_shape(self.loss, params, batch)
        return jax.tree.map(_find_row_dim, aux, whole)

    def _aux_reductions(self, row_dims: Any) -> Any:
        def reduction(leaf: _AuxLeaf) -> str:
            return "stack" if leaf.row_dim is not None else _aux_reduction(leaf.dtype, self.loss_reduction)

        return jax.tree.map(reduction, row_dims)


def _check_sum_dtype(sum_dtype: Any) -> None:
    try:
        is_float = sum_dtype is None or jnp.issubdtype(jnp.dtype(sum_dtype), jnp.floating)
    except TypeError:
        is_float = False
    if not is_float:
        raise PlanError(
            f"sum_dtype={sum_dtype!r:.80} is no dtype of floating numbers. Use one such as jnp.float32, or None for "
            "float32 where parameters have fewer bits."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AuxLeaf:
    """A leaf of what comes with the loss: its dtype, and the dim that has the rows, if one does."""

    dtype: Any
    row_dim: int | None


def _first(shape: Sequence[int], rows: int) -> int | None:
    return shape.index(rows) if rows in shape else None


def _find_row_dim(leaf: Any, whole: Any) -> _AuxLeaf:
    sizes = zip(leaf.shape, whole.shape, strict=False) if leaf.ndim == whole.ndim else ()
    longer = [dim for dim, (size, whole_size) in enumerate(sizes) if size != whole_size]
    return _AuxLeaf(dtype=leaf.dtype, row_dim=longer[0] if len(longer) == 1 else None)


def _join_rows(stacked: Any, row_dim: int) -> Any:
    """Joins the rows of microbatches, stacked along a new first dim, in the dim of the rows."""
    parts = jnp.moveaxis(stacked, 0, row_dim)
    shape = parts.shape
    return parts.reshape(*shape[:row_dim], shape[row_dim] * shape[row_dim + 1], *shape[row_dim + 2 :])


def _aux_reduction(dtype: Any, loss_reduction: str) -> str:
    if jnp.issubdtype(dtype, jnp.floating):
        return loss_reduction
    return "sum" if jnp.issubdtype(dtype, jnp.integer) else "stack"


def check_scalar(found: Any, loss: Callable[..., Any]) -> None:
    """Checks that a loss is one floating number.

    Raises:
        PlanError: if it is not.
    """
    shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", None)
    if shape == () and dtype is not None and jnp.issubdtype(dtype, jnp.floating):
        return
    name = getattr(loss, "__name__", "the loss")
    if shape is None:
        what, do = f"a {type(found).__name__}", "Return the loss alone, or say has_aux=True if more comes with it."
    elif shape:
        what = f"an array of shape {tuple(shape)}"
        do = 'Return one number: the mean over the rows, or their sum with loss_reduction="sum".'
    else:
        what, do = f"a {dtype}", "Return a floating number."
    raise PlanError(f"{name} returns {what}, but a loss is a scalar mean or sum over the rows of its batch. {do}")


def count_rows(batch: Any) -> int:
    """Returns the rows of a batch: the first dim of all its leaves.

    Raises:
        PlanError: if they disagree, or there are none.
    """
    rows: dict[int | None, str] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        shape = jnp.shape(leaf)
        rows.setdefault(shape[0] if shape else None, jax.tree_util.keystr(path) or "the batch")
    if not rows or 0 in rows:
        raise PlanError("the batch has no rows: nothing to split into microbatches. Pass one with rows as first dims.")
    if None in rows:
        raise PlanError(
            f"the batch has a scalar, {rows[None]}; all its leaves need the rows of the batch as their first dim. "
            "Close over it in the loss, or repeat it for every row."
        )
    if len(rows) > 1:
        found = ", ".join(f"{path} has {count}" for count, path in rows.items())
        raise PlanError(f"the leaves of the batch disagree on its rows, their first dim: {found}. Give all the same.")
    (count,) = rows
    assert count is not None
    return count


def split_rows(batch: Any, num_microbatches: int) -> Any:
    """Returns the batch with its rows in microbatches, in order: the first dim of each leaf becomes two.

    Raises:
        PlanError: if they cannot be split so; the message has the counts that can be.
    """
    rows = count_rows(batch)
    if num_microbatches < 1 or rows % num_microbatches:
        counts = [count for count in range(1, rows + 1) if rows % count == 0]
        raise PlanError(
            f"a batch of {rows} rows cannot be split into {num_microbatches} equal microbatches. Use "
            f"{_listed(counts)} microbatches, or another batch."
        )
    size = rows // num_microbatches
    return jax.tree.map(lambda leaf: jnp.reshape(leaf, (num_microbatches, size, *jnp.shape(leaf)[1:])), batch)


def _listed(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}"


def valid_microbatch_counts(loss: Callable[..., Any], params: Any, batch: Any) -> tuple[int, ...]:
    """Returns the numbers of microbatches that a batch can have: they divide its rows, and the loss can take them.

    A loss that takes a microbatch of one row takes any.

    Args:
        params, batch: types; the loss takes the whole batch.
    """
    rows = count_rows(batch)
    counts = [count for count in range(1, rows + 1) if rows % count == 0]

    def can_take(count: int) -> bool:
        part = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows // count, *leaf.shape[1:]), leaf.dtype), batch)
        try:
            found = jax.eval_shape(loss, params, part)
        except Exception:  # Whatever it is: the loss wants other rows.
            return False
        return all(jnp.shape(leaf) == () for leaf in jax.tree.leaves(found)[:1])

    if can_take(rows):
        return tuple(counts)
    return (1, *(count for count in counts[1:-1] if can_take(count)))


def check_reduction(step: TrainStep, params: Any, batch: Any, *, counts: Sequence[int] | None = None) -> None:
    """Holds a loss on a batch against the losses on parts of it; arguments that are types alone are not looked at.

    The parts are the largest and the smallest that microbatches can be: some rows more or less matter less to
    what is normalised over many.

    Args:
        counts: the numbers of microbatches that there can be.

    Raises:
        PlanError: if the loss is not the mean, or sum, of those, as the step says.
    """
    leaves = jax.tree.leaves((params, batch))
    counts = counts or valid_microbatch_counts(step.loss, params, batch)
    if len(counts) == 1 or not all(
        isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int) for leaf in leaves
    ):
        return
    rows = count_rows(batch)
    run = jax.jit(lambda params, batch: step.loss(params, batch)[0] if step.has_aux else step.loss(params, batch))
    _compare_parts(step, run, params, batch, counts[1])
    smallest = rows // counts[-1]
    few = max(count for count in (1, 2, 3) if rows % (smallest * count) == 0 and rows // (smallest * count) in counts)
    if few > 1:
        _compare_parts(step, run, params, jax.tree.map(lambda leaf: leaf[: few * smallest], batch), few)


def _compare_parts(step: TrainStep, run: Callable[..., Any], params: Any, batch: Any, num_parts: int) -> None:
    """Compares the loss of a batch with those of its equal parts."""
    rows = count_rows(batch)
    parts = split_rows(batch, num_parts)
    whole_loss = run(params, batch)
    whole = float(whole_loss)
    losses = [float(run(params, jax.tree.map(lambda leaf: leaf[part], parts))) for part in range(num_parts)]  # noqa: B023
    size = max(map(abs, (whole, *losses)))
    errors = {"mean": abs(whole - sum(losses) / num_parts), "sum": abs(whole - sum(losses))}
    is_short = any(jnp.finfo(leaf.dtype).bits < 32 for leaf in (whole_loss, *_floats(params)))
    tolerance = size * (_SHORT_TOLERANCE if is_short else _TOLERANCE)
    if errors[step.loss_reduction] <= tolerance or not np.isfinite(size):
        return
    name = getattr(step.loss, "__name__", "the loss")
    other = next((word for word, error in errors.items() if error <= tolerance), None)
    do = (
        f'It is a {other}: say loss_reduction="{other}".'
        if other
        else "Make it a mean or a sum of the losses of rows, each computed from its row alone."
    )
    found = " and ".join(f"{loss:.6g}" for loss in losses)
    raise PlanError(
        f"{name} is no {step.loss_reduction} over the rows of its batch: it is {whole:.6g} on {rows} rows, {found} "
        f"on equal parts of them. {do}"
    )


def _floats(params: Any) -> list[Any]:
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(params)]
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
