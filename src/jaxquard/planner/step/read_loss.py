"""Reads from the jaxpr of a loss whether it may be split into microbatches, and how.

The loss, its gradients and what comes with it are traced on the whole batch and on a microbatch, and `ir.rows` relates
the two. A loss is proved to be split if each result of the batch is the sum or the mean of those of the microbatches,
their rows joined, their maximum, or the same in all. Arrays and types make no difference, and nothing runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxquard.ir.jaxpr_tools import evaluate, with_constants_as_inputs
from jaxquard.ir.rows import DRAWS, SAME, Cause, Kind, Law, RowReader, RowRelations, of_values, row_dim, rows
from jaxquard.ir.source import UNKNOWN_LINE, source_line
from jaxquard.planner.step.recompute_layers import open_jits
from jaxquard.planner.step.whole_totals import WholeTotals, hoist_totals

MEAN, SUM = "mean", "sum"


_CURE = (
    'Use one microbatch; or say loss_reduction="per_microbatch" if you mean the mean of the losses of microbatches, '
    'each on its own; or return (sum, weight) and say loss_reduction="weighted".'
)
RNG_CURE = (
    "A random key goes beside the batch: take it as third argument of the loss, and pass rng=key to parallelize and to "
    "run.step; or give every row a key of its own."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxReduction:
    """The reduction of a leaf of what comes with the loss, from those of the microbatches.

    Attributes:
        word: of `accumulate_grads`: "mean", "sum", "max", "last" or "stack".
        row_dim: of a leaf with rows: the dim along which those of the microbatches are joined.
    """

    word: str
    row_dim: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSplit:
    """The way in which the loss of a batch follows from those of its microbatches.

    Attributes:
        reduction: of losses and gradients: "mean" or "sum".
        aux: for each leaf of what comes with the loss.
        totals: of the batch that microbatches read; None if they read none.
    """

    reduction: str
    aux: tuple[AuxReduction, ...] = ()
    totals: WholeTotals | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReading:
    """An answer of `LossReader`.

    Attributes:
        split: None without a proof.
        reason: why there is none, as the end of "the loss ...", with the user's line.
        cure: what the user can do.
    """

    split: LossSplit | None
    reason: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossReader:
    """Reads a loss for each number of microbatches, once.

    Attributes:
        loss: `loss(params, inputs)`, where the inputs are a batch, or a batch and a key.
        has_aux: it returns (loss, aux).
        has_key: the inputs are a batch and a key; each microbatch gets a key of its own.
        wanted: "mean" or "sum", what the caller says that the loss is; None for either.
    """

    loss: Callable[[Any, Any], Any]
    has_aux: bool = False
    has_key: bool = False
    wanted: str | None = None
    _traces: dict[Any, Any] = field(default_factory=dict, repr=False)
    _readings: dict[Any, LossReading] = field(default_factory=dict, repr=False)

    def gradients(self, params: Any, inputs: Any) -> Callable[..., tuple[Any, list[Any], list[Any]]]:
        """Returns the loss, its gradients and what comes with it, as traced: what was read is what runs.

        Args:
            params, inputs: types, or arrays.

        Returns:
            A function of leaves of the parameters and of the inputs.
        """
        types = jax.tree.map(_plain_type, (params, inputs))
        run = core.jaxpr_as_fun(self._trace(self._with_gradients, *types))
        num_params = len(jax.tree.leaves(params))

        def gradients(*leaves: Any) -> tuple[Any, list[Any], list[Any]]:
            loss, *others = run(*leaves)
            return loss, others[:num_params], others[num_params:]

        return gradients

    def read(self, params: Any, inputs: Any, num_microbatches: int) -> LossReading:
        """Reads the loss.

        Args:
            params, inputs: arrays or types; those of a whole batch.
        """
        types = jax.tree.map(_plain_type, (params, inputs))
        leaves, tree = jax.tree.flatten(types)
        key = tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves), num_microbatches
        if key not in self._readings:
            self._readings[key] = self._read(types[0], types[1], num_microbatches)
        return self._readings[key]

    def _read(self, params: Any, inputs: Any, num_microbatches: int) -> LossReading:
        part = _microbatch_of(inputs, num_microbatches, has_key=self.has_key)
        try:
            whole, of_part = (self._trace(self._with_gradients, params, one) for one in (inputs, part))
        except Exception as error:  # Whatever it is: the loss wants other rows.
            first_line = next(iter(str(error).splitlines()), type(error).__name__)
            return LossReading(split=None, reason=f"does not take such a microbatch: {first_line}", cure=_CURE)
        reader = RowReader(num_parts=num_microbatches, draws_rows=self.has_key)
        states = self._states(params, inputs)
        num_params = len(jax.tree.leaves(params))
        found = _split_of(reader.relate(whole, of_part, states), self.wanted, num_params=num_params)
        if isinstance(found, LossSplit):
            return LossReading(split=found)
        rest = self._read_totals(reader, params, inputs, part, states)
        if rest is not None:
            return LossReading(split=rest)
        cure = RNG_CURE if found.reason.endswith(DRAWS) else _CURE
        return LossReading(split=None, reason=describe_cause(found), cure=cure)

    def _read_totals(
        self, reader: RowReader, params: Any, inputs: Any, part: Any, states: Sequence[Any]
    ) -> LossSplit | None:
        """Reads the loss with totals of the batch as numbers."""
        (whole, consts), (of_part, others) = (
            with_constants_as_inputs(self._trace(self.loss, params, one)) for one in (inputs, part)
        )
        known = [of_values(*pair) for pair in zip(consts, others, strict=True)]
        relations = reader.relate(open_jits(whole), open_jits(of_part), [*states, *known], opens=False)
        num_params = len(jax.tree.leaves(params))
        for divides in (True, False):
            hoisted = hoist_totals(relations, num_params=num_params, constants=(consts, others), divides=divides)
            if hoisted is None:
                return None
            given = [
                SAME.scaled(float(reader.num_parts) if divides and jnp.issubdtype(var.aval.dtype, jnp.floating) else 1)
                for var in hoisted[0].middle.outvars
            ]
            whole, of_part = (
                self._trace_rest(rest, params, one) for rest, one in zip(hoisted, (inputs, part), strict=True)
            )
            # Given their totals, a mean may come out as a sum, or the other way round.
            wanted = self.wanted if self.wanted is None else MEAN if divides else SUM
            found = _split_of(reader.relate(whole, of_part, [*states, *given]), wanted, num_params=num_params)
            if isinstance(found, LossSplit):
                return LossSplit(reduction=found.reduction, aux=found.aux, totals=hoisted[1])
        return None

    def _states(self, params: Any, inputs: Any) -> list[Law]:
        """Returns what is known of the loss's inputs."""
        batch, *keys = inputs if self.has_key else (inputs,)
        counts = [len(jax.tree.leaves(one)) for one in (params, batch, keys)]
        return [SAME] * counts[0] + [rows(0)] * counts[1] + [SAME] * counts[2]

    def _with_gradients(self, params: Any, inputs: Any) -> Any:
        (loss, aux), grads = jax.value_and_grad(self._with_aux, has_aux=True)(params, inputs)
        return loss, grads, aux

    def _with_aux(self, params: Any, inputs: Any) -> tuple[Any, Any]:
        found = self.loss(params, inputs)
        return found if self.has_aux else (found, None)

    def _trace(self, fn: Callable[..., Any], params: Any, inputs: Any) -> Any:
        leaves, tree = jax.tree.flatten((params, inputs))
        key = fn is self.loss, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._traces:
            self._traces[key] = jax.make_jaxpr(fn)(params, inputs)
        return self._traces[key]

    def _trace_rest(self, rest: WholeTotals, params: Any, inputs: Any) -> Any:
        leaves = jax.tree.leaves(inputs)
        values = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in rest.middle.outvars]

        def run(params: Any, leaves: Any, values: Any) -> tuple[Any, Any]:
            loss, *aux = evaluate(rest.body)(*jax.tree.leaves(params), *leaves, *rest.constants, *values)
            return loss, aux

        def gradients(*args: Any) -> Any:
            (loss, aux), grads = jax.value_and_grad(run, has_aux=True)(*args)
            return loss, grads, aux

        return jax.make_jaxpr(gradients)(params, leaves, values)


def _plain_type(leaf: Any) -> jax.ShapeDtypeStruct:
    found = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else jax.typeof(leaf)
    return jax.ShapeDtypeStruct(found.shape, found.dtype)


def _microbatch_of(inputs: Any, num_microbatches: int, *, has_key: bool) -> Any:
    batch, *key = inputs if has_key else (inputs,)
    part = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0] // num_microbatches, *leaf.shape[1:]), leaf.dtype), batch
    )
    return (part, *key) if has_key else part


def _split_of(relations: RowRelations, wanted: str | None, *, num_params: int) -> LossSplit | Cause:
    """Returns how the results follow from those of the parts, or why that is unknown.

    Args:
        relations: of the loss, its gradients, and what comes with it.
    """
    loss, *others = relations.outputs
    if loss.cause is not None:
        return loss.cause
    words = [word for word in (MEAN, SUM) if _is_reduced(loss, word, relations.num_parts)]
    if not words:
        return Cause(equation=None, reason=f"is {_WORDS[loss.kind]} over microbatches and no mean or sum")
    reduction = wanted or words[0]
    if reduction not in words:
        return Cause(
            equation=None, reason=f'is a {words[0]} over the rows: say loss_reduction="{words[0]}" to split it as one'
        )
    for law in others[:num_params]:
        if law.cause is not None:
            return Cause(equation=law.cause.equation, reason=f"has a gradient that {law.cause.reason}")
        if not _is_reduced(law, reduction, relations.num_parts):
            return Cause(equation=None, reason=f"has a gradient that is no {reduction} over the rows")
    jaxprs = relations.whole, relations.part
    pairs = zip(*(jaxpr.outvars[1 + num_params :] for jaxpr in jaxprs), strict=True)
    aux = [
        _aux_reduction(law, tuple(atom.aval for atom in pair), relations.num_parts)
        for law, pair in zip(others[num_params:], pairs, strict=True)
    ]
    unknown = next((one for one in aux if isinstance(one, Cause)), None)
    if unknown is not None:
        return Cause(equation=unknown.equation, reason=f"comes with aux that {unknown.reason}")
    return LossSplit(reduction=reduction, aux=tuple(one for one in aux if isinstance(one, AuxReduction)))


def _is_reduced(law: Law, word: str, num_parts: int) -> bool:
    """Returns true for the mean or sum of the values of the parts."""
    scale = 1.0 if word == SUM else 1.0 / num_parts
    if law.kind is Kind.SAME:
        return law.has_scale(scale * num_parts)
    return law.kind is Kind.ZERO or (law.kind is Kind.SUM and law.has_scale(scale))


def _aux_reduction(law: Law, types: tuple[Any, ...], num_parts: int) -> AuxReduction | Cause:
    """Returns the reduction of a leaf, given its types in the whole and in a part."""
    if law.cause is not None:
        return law.cause
    shapes, dtype = [of.shape for of in types], types[0].dtype
    if law.kind is Kind.ZERO and shapes[0] != shapes[1]:
        dim = row_dim(shapes[0], shapes[1], num_parts)
        return Cause(equation=None, reason="has several dims with rows") if dim is None else _joined(dim)
    if law.kind is Kind.ROWS and law.outer in (None, 1) and law.order is None and law.has_scale(1.0):
        return _joined(law.dim)
    if law.kind is Kind.MAX:
        return AuxReduction(word="max")
    if law.kind in (Kind.SAME, Kind.ZERO) and law.has_scale(1.0):
        return AuxReduction(word="last")
    if _is_reduced(law, SUM, num_parts):
        return AuxReduction(word=SUM)
    if _is_reduced(law, MEAN, num_parts) and jnp.issubdtype(dtype, jnp.inexact):
        return AuxReduction(word=MEAN)
    return Cause(equation=None, reason="is no mean, sum or maximum over the rows, and has none of its own")


def _joined(dim: int) -> AuxReduction:
    return AuxReduction(word="stack", row_dim=dim)


_WORDS = {Kind.MAX: "a maximum", Kind.ROWS: "rows", Kind.SUM: "a multiple of a sum", Kind.SAME: "a multiple"}


def describe_cause(cause: Cause) -> str:
    """Returns what a loss does that cannot be split, as the end of "the loss ...", with the user's line."""
    line = UNKNOWN_LINE if cause.equation is None else source_line(cause.equation)
    return cause.reason if line == UNKNOWN_LINE else f"{cause.reason} ({line})"
