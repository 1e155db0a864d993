"""A training step from a loss and an optimizer: microbatches, sums of gradients, an update.

    state, metrics = train_step(state, batch)

How the losses and gradients of microbatches become those of the batch is read from the loss (`read_loss`). A loss that
cannot be split so has one microbatch, or is defined as the mean over microbatches (`loss_reduction="per_microbatch"`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxquard.errors import PlanError, UnsplitLossError
from jaxquard.ir.jaxpr_tools import evaluate
from jaxquard.pipeline.loop import accumulate_grads
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.step.extra_state import ExtraState, StepInfo
from jaxquard.planner.step.optimizer import GradientOptimizer, update_params
from jaxquard.planner.step.read_loss import RNG_CURE, AuxReduction, LossReader, LossSplit
from jaxquard.planner.step.recompute_layers import recompute_layers
from jaxquard.planner.step.step_metrics import StepMetric, step_metrics
from jaxquard.schedules import AUTO, Schedule

# What a loss may be said to be; None leaves it to the code.
LOSS_REDUCTIONS = ("mean", "sum", "weighted", "per_microbatch")


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class TrainStep:
    """A training step: `state, metrics = step(state, batch)`, or `step(state, batch, rng)`.

    The state is a dict of `params`, `opt_state` and `step`, the number of steps that were taken, and `extra` if it has
    any. The metrics have the `loss` and, with `has_aux`, `aux`: what the loss returns for the whole batch.

    Attributes:
        loss: a function of the parameters and a batch, and with `has_rng` of a key; with `has_aux` it returns the loss
            and more.
        num_microbatches: into which the rows of every batch are split, in order.
        loss_reduction: "mean" or "sum" where the caller knows what the loss is over the rows of its batch; "weighted"
            if it returns a sum and its weight; "per_microbatch" for the mean of the losses of the microbatches, each
            on its own, where other floating numbers of `aux` are averaged too, integers summed, rows joined, and all
            else stacked. None to read it from the loss.
        has_rng: microbatch i gets the key `jax.random.fold_in(rng, i)`.
        sum_dtype: in which gradients, and floating numbers that are reduced as the loss is, are summed over
            microbatches; None for float32 where parameters have fewer bits, else for their own. The optimizer gets
            gradients of the parameters' dtypes.
        metrics: that are made on request.
        extra: state of the user's own.
        schedule: of the loop; `AUTO` until a plan is applied.
        recompute: the activations that the backward computes again.
        reader: of the loss; made from the rest.
    """

    loss: Callable[..., Any]
    optimizer: GradientOptimizer
    num_microbatches: int = 1
    has_aux: bool = False
    loss_reduction: str | None = None
    has_rng: bool = False
    sum_dtype: Any = None
    metrics: tuple[StepMetric, ...] = ()
    extra: ExtraState | None = None
    schedule: Schedule = AUTO
    recompute: Recompute = Recompute.NONE
    reader: LossReader = field(default=None, repr=False)  # pyrefly: ignore[bad-assignment]

    def __post_init__(self) -> None:
        if self.loss_reduction is not None and self.loss_reduction not in LOSS_REDUCTIONS:
            words = ", ".join(f'"{word}"' for word in LOSS_REDUCTIONS)
            raise PlanError(
                f"loss_reduction={self.loss_reduction!r} is not known. Say what the loss is over the rows of its "
                f"batch, {words}, or leave it out."
            )
        _check_sum_dtype(self.sum_dtype)
        if self.reader is None:
            wanted = self.loss_reduction if self.loss_reduction in ("mean", "sum") else None
            reader = LossReader(loss=self.loss_of_inputs, has_aux=self.has_aux, has_key=self.has_rng, wanted=wanted)
            object.__setattr__(self, "reader", reader)

    def with_microbatches(self, num_microbatches: int, recompute: Recompute = Recompute.NONE) -> "TrainStep":
        """Returns the same step for another number of microbatches, with activations that are computed again."""
        return replace(self, num_microbatches=num_microbatches, recompute=recompute)

    def init(self, params: Any) -> dict[str, Any]:
        """Returns the first state."""
        state = {"params": params, "opt_state": self.optimizer.init(params), "step": jnp.zeros((), jnp.int32)}
        return state if self.extra is None else {**state, "extra": self.extra.init(params)}

    def __call__(self, state: dict[str, Any], batch: Any, *rng: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        params = state["params"]
        inputs = self._split_inputs(batch, *rng)
        split = self.find_split(params, batch, *rng)
        gradients = self._find_gradients(split, params, inputs)
        reduce = (split.reduction, split.reduction, [of.word for of in split.aux], "stack")
        loop = accumulate_grads(gradients, self.schedule, reduce, sum_dtype=self._find_sum_dtype(params))
        grads, value, aux, microbatch_aux = loop(inputs)
        aux = [
            leaf if of.row_dim is None else _join_rows(leaf, of.row_dim)
            for leaf, of in zip(aux, split.aux, strict=True)
        ]
        aux_tree = jax.tree.structure(self._aux_types(params, batch, *rng))
        aux = jax.tree.unflatten(aux_tree, aux)
        grads = jax.tree.map(lambda grad, param: grad.astype(jnp.asarray(param).dtype), grads, params)
        updated, opt_state = update_params(self.optimizer, grads, state["opt_state"], params, loss=value)
        step = state["step"]
        new_state = {"params": updated, "opt_state": opt_state, "step": step + 1}
        if self.extra is not None:
            # What comes with a part of a loss that reads totals of the batch is a part, too.
            parts = None if split.totals else jax.tree.unflatten(aux_tree, microbatch_aux)
            info = StepInfo(params=updated, grads=grads, loss=value, aux=aux, microbatch_parts=parts, step=step)
            new_state["extra"] = self.extra.next(state["extra"], info)
        metrics = {"loss": value, **step_metrics(self.metrics, grads=grads, opt_state=opt_state, step=step)}
        return new_state, {**metrics, "aux": aux} if self.has_aux else metrics

    def find_split(self, params: Any, batch: Any, *rng: Any) -> LossSplit:
        """Returns how the loss and what comes with it follow from those of the microbatches.

        Args:
            params, batch, rng: arrays or types.

        Raises:
            UnsplitLossError: if the loss cannot be split into so many.
        """
        if self.loss_reduction == "per_microbatch" and self.num_microbatches > 1:
            return LossSplit(reduction="mean", aux=self._aux_per_microbatch(params, batch, *rng))
        if self.num_microbatches == 1:
            leaves = jax.tree.leaves(self._aux_types(params, batch, *rng))
            return LossSplit(reduction="mean", aux=(AuxReduction(word="last"),) * len(leaves))
        split_rows_of(batch, self.num_microbatches)
        reading = self.reader.read(params, self._inputs(batch, *rng), self.num_microbatches)
        if reading.split is None:
            count, name = self.num_microbatches, getattr(self.loss, "__name__", "the loss")
            text = f"{name} cannot be split into {count} microbatches: it {reading.reason}. {reading.cure}"
            raise UnsplitLossError(text, count)
        return reading.split

    def _inputs(self, batch: Any, *rng: Any) -> Any:
        return (batch, *rng) if self.has_rng else batch

    def _split_inputs(self, batch: Any, *rng: Any) -> Any:
        """Returns the inputs of the loss, for each microbatch along a new first dim."""
        microbatches = split_rows(batch, self.num_microbatches)
        if not self.has_rng:
            return microbatches
        if not rng:
            raise PlanError("the loss takes a key, and the step got none. Pass one: run.step(state, batch, rng=key).")
        numbers = jnp.arange(self.num_microbatches)
        return microbatches, jax.vmap(jax.random.fold_in, in_axes=(None, 0))(rng[0], numbers)

    def loss_of_inputs(self, params: Any, inputs: Any) -> Any:
        """The loss of a batch, or of a batch and a key: one number, and what comes with it."""
        found = self.loss(params, *inputs) if self.has_rng else self.loss(params, inputs)
        if self.has_aux and (not isinstance(found, tuple) or len(found) != 2):
            name = getattr(self.loss, "__name__", "the loss")
            raise PlanError(f"{name} returns {type(found).__name__}, but has_aux=True wants (loss, aux). Return both.")
        scalar = found[0] if self.has_aux else found
        if self.loss_reduction == "weighted":
            scalar = divide_by_weight(scalar, self.loss)
        check_scalar(scalar, self.loss)
        return (scalar, found[1]) if self.has_aux else scalar

    def _find_gradients(self, split: LossSplit, params: Any, inputs: Any) -> Callable[[Any], tuple[Any, ...]]:
        """Returns a function of a microbatch: its gradients, its loss, and the leaves that come with it, twice.

        The first of these are reduced, the second stacked for the user's own state.
        """
        if split.totals is None and self.recompute is Recompute.NONE:
            tree = jax.tree.structure(params)
            one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), inputs)
            read = self.reader.gradients(params, one)

            def gradients_as_read(microbatch: Any) -> tuple[Any, ...]:
                value, grads, aux = read(*jax.tree.leaves((params, microbatch)))
                return jax.tree.unflatten(tree, grads), value, aux, aux if self.extra else None

            return gradients_as_read
        grad = jax.value_and_grad(recompute_layers(self._split_loss(split, inputs), self.recompute), has_aux=True)

        def gradients(microbatch: Any) -> tuple[Any, ...]:
            (value, aux), grads = grad(params, microbatch)
            return grads, value, aux, aux if self.extra else None

        return gradients

    def _split_loss(self, split: LossSplit, inputs: Any) -> Callable[..., Any]:
        """Returns the loss of a microbatch, and the leaves that come with it."""
        if split.totals is None:

            def loss(params: Any, microbatch: Any) -> tuple[Any, list[Any]]:
                found = self.loss_of_inputs(params, microbatch)
                value, aux = found if self.has_aux else (found, None)
                return value, jax.tree.leaves(aux)

            return loss
        totals = split.totals
        values = totals.compute(jax.tree.leaves(inputs), self.num_microbatches)

        def loss_with_totals(params: Any, microbatch: Any) -> tuple[Any, list[Any]]:
            leaves = [*jax.tree.leaves(params), *jax.tree.leaves(microbatch)]
            value, *aux = evaluate(totals.body)(*leaves, *totals.constants, *values)
            return value, aux

        return loss_with_totals

    def _find_sum_dtype(self, params: Any) -> Any:
        """Returns the dtype of sums; None for those of what is summed."""
        dtypes = [leaf.dtype for leaf in _floats(params)]
        if self.sum_dtype is not None or all(jnp.finfo(dtype).bits >= 32 for dtype in dtypes):
            return self.sum_dtype
        return jnp.result_type(jnp.float32, *dtypes)

    def _aux_types(self, params: Any, batch: Any, *rng: Any) -> Any:
        """Returns the types of what comes with the loss of a batch; None if nothing does."""
        return jax.eval_shape(self.loss_of_inputs, params, self._inputs(batch, *rng))[1] if self.has_aux else None

    def _aux_per_microbatch(self, params: Any, batch: Any, *rng: Any) -> tuple[AuxReduction, ...]:
        """Reduces what comes with the loss by its types: rows are the dim that is longer on the whole batch."""
        one = split_rows_of(batch, self.num_microbatches)
        pairs = zip(*(jax.tree.leaves(self._aux_types(params, of, *rng)) for of in (one, batch)), strict=True)
        return tuple(_aux_by_type(leaf, whole) for leaf, whole in pairs)


def divide_by_weight(found: Any, loss: Callable[..., Any]) -> Any:
    """Returns the quotient of a sum and its weight, and 0 where the weight is 0.

    Raises:
        PlanError: if a loss did not return these.
    """
    if not isinstance(found, tuple | list) or len(found) != 2 or any(jnp.shape(one) for one in found):
        name = getattr(loss, "__name__", "the loss")
        raise PlanError(
            f'{name} returns {type(found).__name__}, but loss_reduction="weighted" wants (sum, weight): the sum of the '
            "losses of the rows, and of their weights."
        )
    total, weight = found
    weight = jnp.asarray(weight, jnp.result_type(total))
    is_empty = weight == 0
    return jnp.where(is_empty, 0, total / jnp.where(is_empty, 1, weight))


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


def _aux_by_type(leaf: Any, whole: Any) -> AuxReduction:
    sizes = zip(leaf.shape, whole.shape, strict=False) if leaf.ndim == whole.ndim else ()
    longer = [dim for dim, (size, whole_size) in enumerate(sizes) if size != whole_size]
    if len(longer) == 1:
        return AuxReduction(word="stack", row_dim=longer[0])
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return AuxReduction(word="mean")
    return AuxReduction(word="sum" if jnp.issubdtype(leaf.dtype, jnp.integer) else "stack")


def _join_rows(stacked: Any, row_dim: int) -> Any:
    """Joins the rows of microbatches, stacked along a new first dim, in the dim of the rows."""
    parts = jnp.moveaxis(stacked, 0, row_dim)
    shape = parts.shape
    return parts.reshape(*shape[:row_dim], shape[row_dim] * shape[row_dim + 1], *shape[row_dim + 2 :])


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
        do = "Return one number: a mean or a sum over the rows."
    else:
        what, do = f"a {dtype}", "Return a floating number."
    raise PlanError(f"{name} returns {what}, but a loss is a scalar mean or sum over the rows of its batch. {do}")


def count_rows(batch: Any) -> int:
    """Returns the rows of a batch: the first dim of all its leaves.

    Raises:
        PlanError: if they disagree, or there are none.
    """
    rows: dict[int | None, str] = {}
    keys = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        shape = jnp.shape(leaf)
        if is_random_key(leaf):
            keys.append(path)
        rows.setdefault(shape[0] if shape else None, jax.tree_util.keystr(path) or "the batch")
    if not rows or 0 in rows:
        raise PlanError("the batch has no rows: nothing to split into microbatches. Pass one with rows as first dims.")
    if None in rows:
        raise PlanError(
            f"the batch has a scalar, {rows[None]}; all its leaves need the rows of the batch as their first dim. "
            f"{_cure_for_scalar(keys)}"
        )
    if len(rows) > 1:
        found = ", ".join(f"{path} has {count}" for count, path in rows.items())
        cure = f"Give all the same. {RNG_CURE}" if keys else "Give all the same."
        raise PlanError(f"the leaves of the batch disagree on its rows, their first dim: {found}. {cure}")
    (count,) = rows
    assert count is not None
    return count


def is_random_key(leaf: Any) -> bool:
    """Returns true for one random key: typed, or as two unsigned numbers."""
    dtype = getattr(leaf, "dtype", None)
    is_typed = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    return (is_typed and jnp.shape(leaf) == ()) or (dtype == jnp.uint32 and jnp.shape(leaf) == (2,))


def _cure_for_scalar(keys: Sequence[Any]) -> str:
    return RNG_CURE if keys else "Close over it in the loss, or repeat it for every row."


def split_rows_of(batch: Any, num_microbatches: int) -> Any:
    """Returns the types of a microbatch.

    Raises:
        PlanError: if the rows cannot be split so.
    """
    size = _microbatch_size(batch, num_microbatches)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *jnp.shape(leaf)[1:]), leaf.dtype), batch)


def split_rows(batch: Any, num_microbatches: int) -> Any:
    """Returns the batch with its rows in microbatches, in order: the first dim of each leaf becomes two.

    Raises:
        PlanError: if they cannot be split so; the message has the counts that can be.
    """
    size = _microbatch_size(batch, num_microbatches)
    return jax.tree.map(lambda leaf: jnp.reshape(leaf, (num_microbatches, size, *jnp.shape(leaf)[1:])), batch)


def _microbatch_size(batch: Any, num_microbatches: int) -> int:
    rows = count_rows(batch)
    if num_microbatches < 1 or rows % num_microbatches:
        counts = [count for count in range(1, rows + 1) if rows % count == 0]
        raise PlanError(
            f"a batch of {rows} rows cannot be split into {num_microbatches} equal microbatches. Use "
            f"{_listed(counts)} microbatches, or another batch."
        )
    return rows // num_microbatches


def _listed(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}"


def _floats(params: Any) -> list[Any]:
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(params)]
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
