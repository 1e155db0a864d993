"""The numbers of microbatches that a step may have, and why it may have no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.planner.step.read_loss import LossReading
from jaxquard.planner.step.train_step import TrainStep, count_rows, split_rows, split_rows_of

# Values that are made up for a counterexample, in all.
_MOST_VALUES = 1 << 22
# Sums in another order differ by less: of float32, and of fewer bits.
_TOLERANCE, _SHORT_TOLERANCE = 1e-3, 5e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchCounts:
    """The numbers of microbatches that a step may have.

    Attributes:
        counts: in order, 1 first.
        verdict: "proved", "unknown" or "refuted": whether the loss of the batch follows from those of microbatches;
            "defined" where the caller defined it by these.
        reduction: what the loss is over microbatches: "mean", "sum" or "per_microbatch".
        note: why there is one microbatch; "" if there may be more.
    """

    counts: tuple[int, ...]
    verdict: str
    reduction: str = "mean"
    note: str = ""


def find_counts(step: TrainStep, params: Any, batch: Any, *rng: Any) -> MicrobatchCounts:
    """Finds the numbers of microbatches into which a loss may be split.

    They divide the rows, the loss takes such microbatches, and the most of them are proved, or the most and the fewest
    where it does not take one row; the others are when they are chosen.

    Args:
        params, batch, rng: types; the loss takes the whole batch.
    """
    inputs = (batch, *rng) if step.has_rng else batch
    if step.loss_reduction == "per_microbatch":
        counts = _taken_counts(step, params, batch, *rng)
        return MicrobatchCounts(counts=counts, verdict="defined", reduction=step.loss_reduction)
    rows = count_rows(batch)
    of_rows = step.reader.read(params, inputs, rows)
    if of_rows.split is not None:
        counts = tuple(count for count in range(1, rows + 1) if rows % count == 0)
        return MicrobatchCounts(counts=counts, verdict="proved", reduction=of_rows.split.reduction)
    counts = _taken_counts(step, params, batch, *rng)
    if len(counts) == 1:
        return MicrobatchCounts(counts=counts, verdict="unknown", note=_explain(step, of_rows))
    first = step.reader.read(params, inputs, counts[1])
    if first.split is None:
        example = find_counterexample(step, params, batch, counts[1]) if not rng else ""
        return MicrobatchCounts(
            counts=(1,),
            verdict="refuted" if example else "unknown",
            note=_explain(step, first, example),
        )
    while step.reader.read(params, inputs, counts[-1]).split is None:
        counts = counts[:-1]
    return MicrobatchCounts(counts=counts, verdict="proved", reduction=first.split.reduction)


def _explain(step: TrainStep, reading: LossReading, example: str = "") -> str:
    name = getattr(step.loss, "__name__", "the loss")
    return f"one microbatch, because {name} {reading.reason}{example}. {reading.cure}"


def _taken_counts(step: TrainStep, params: Any, batch: Any, *rng: Any) -> tuple[int, ...]:
    """Returns the numbers that divide the rows, and whose microbatches the loss takes; if it takes one row, all."""
    rows = count_rows(batch)
    counts = [count for count in range(1, rows + 1) if rows % count == 0]

    def can_take(count: int) -> bool:
        part = split_rows_of(batch, count)
        try:
            jax.eval_shape(step.loss_of_inputs, params, (part, *rng) if step.has_rng else part)
        except Exception:  # Whatever it is: the loss wants other rows.
            return False
        return True

    if can_take(rows):
        return tuple(counts)
    return (1, *(count for count in counts[1:-1] if can_take(count)))


def find_counterexample(step: TrainStep, params: Any, batch: Any, num_microbatches: int) -> str:
    """Returns made-up values for which a loss is neither the mean nor the sum of those of its microbatches, as text.

    Returns:
        "" if they agree, or if the loss is too large to run here.
    """
    leaves = jax.tree.leaves((params, batch))
    if sum(leaf.size for leaf in leaves) > _MOST_VALUES:
        return ""
    generator = np.random.default_rng(0)
    try:
        params, batch = jax.tree.map(lambda leaf: _make(leaf, generator), (params, batch))
        parts = split_rows(batch, num_microbatches)
        run = jax.jit(jax.value_and_grad(step.loss_of_inputs, has_aux=step.has_aux))
        whole = run(params, batch)
        found = [
            run(params, jax.tree.map(lambda leaf, part=part: leaf[part], parts)) for part in range(num_microbatches)
        ]
    except Exception:  # Made-up values need not be what the loss can take.
        return ""
    return _difference(whole, found, has_aux=step.has_aux)


def _difference(whole: Any, parts: Sequence[Any], *, has_aux: bool) -> str:
    """Says where the loss, or else a gradient, is neither the mean nor the sum of those of the parts; or returns ""."""
    of_whole, *of_parts = (_results(found, has_aux=has_aux) for found in (whole, *parts))
    for place, expected in enumerate(of_whole):
        values = np.stack([part[place] for part in of_parts])
        size = max(np.abs(expected).max(initial=0), np.abs(values).max(initial=0))
        if not np.isfinite(size):
            return ""
        tolerance = size * (_SHORT_TOLERANCE if jax.tree.leaves(whole)[0].dtype.itemsize < 4 else _TOLERANCE)
        errors = [np.abs(expected - of_all) for of_all in (values.mean(0), values.sum(0))]
        if min(error.max(initial=0) for error in errors) > tolerance:
            worst = np.unravel_index(np.argmax(errors[0]), errors[0].shape)
            name = "a number of its gradient" if place else "it"
            mean = values.mean(0)[worst]
            return (
                f": on random values {name} is {expected[worst]:.4g}, and {mean:.4g} is the mean of {len(parts)} parts"
            )
    return ""


def _results(found: Any, *, has_aux: bool) -> list[np.ndarray]:
    """Returns the loss and its gradients."""
    (value, grads) = found
    loss = value[0] if has_aux else value
    return [np.asarray(leaf).astype(np.float64) for leaf in (loss, *jax.tree.leaves(grads))]


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _make(leaf: Any, generator: np.random.Generator) -> Any:
    """Returns values of a type: normal numbers, keys, and 0 or 1, which are positions in any table."""
    if _is_key(leaf):
        seeds = jnp.asarray(generator.integers(0, 1 << 30, size=leaf.size))
        return jnp.reshape(jax.vmap(jax.random.key)(seeds), leaf.shape)
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.asarray(generator.normal(size=leaf.shape), leaf.dtype)
    return jnp.asarray(generator.integers(0, 2, size=leaf.shape), leaf.dtype)
