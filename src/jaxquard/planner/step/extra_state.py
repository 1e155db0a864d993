"""State of the user's own in a training step: averages of parameters, statistics of batches, counters.

    new_state["extra"] = update(state["extra"], info)         (after the optimizer's update)

What a plain loop carries from microbatch to microbatch is folded here: `info.microbatch_aux` has what came with the
loss of every microbatch, in order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jaxquard.errors import PlanError
from jaxquard.planner.step.check_arguments import find_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """Results of a step, for `update_extra(extra, info)`.

    Attributes:
        params: the new parameters.
        grads: of the whole batch, as the optimizer got them.
        loss: of the whole batch.
        aux: what came with the loss, as the metrics have it; None if nothing does.
        microbatch_parts: what came with the losses of the microbatches; None if these are parts that are nothing alone.
        step: the number of steps before this one.
    """

    params: Any
    grads: Any
    loss: Any
    aux: Any
    microbatch_parts: Any = field(repr=False)
    step: Any

    @property
    def microbatch_aux(self) -> Any:
        """The leaves that came with the loss of every microbatch, stacked along a new first dim.

        They are in their order. A batch of other rows may have another number of them.

        Raises:
            PlanError: if the losses of microbatches are no losses of their own.
        """
        if self.microbatch_parts is None and self.aux is not None:
            raise PlanError(
                "info.microbatch_aux: the loss is split by totals of the whole batch, and what comes with a part of it "
                'is no aux of its own. Say loss_reduction="per_microbatch" for losses of microbatches, each on its own.'
            )
        return self.microbatch_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraState:
    """State of the user's own.

    Attributes:
        init: makes its first values from the parameters.
        update: makes its next values from it and a `StepInfo`.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, StepInfo], Any]

    def next(self, extra: Any, info: StepInfo) -> Any:
        """Returns its next values.

        Raises:
            PlanError: if they are of other types.
        """
        updated = jax.tree.map(jnp.asarray, self.update(extra, info))
        different = find_difference(extra, updated, name="extra")
        if different:
            raise PlanError(f"update_extra returns another state than it gets: {different} Return the same types.")
        return updated


def read_extra_state(extra_state: Any, update_extra: Callable[[Any, StepInfo], Any] | None) -> ExtraState | None:
    """Returns the state that a user asks for; None for none.

    Args:
        extra_state: a pytree of arrays, or a function of the parameters that returns one.
        update_extra: makes its next values.

    Raises:
        PlanError: if one is given without the other.
    """
    if extra_state is None and update_extra is None:
        return None
    if extra_state is None or not callable(update_extra):
        raise PlanError(
            "extra_state and update_extra go together: the first values, or a function of the parameters that returns "
            f"them, and a function (extra, info) -> extra. Found extra_state={extra_state!r:.80} and "
            f"update_extra={update_extra!r:.80}."
        )
    init = extra_state if callable(extra_state) else lambda params: extra_state
    return ExtraState(init=lambda params: jax.tree.map(jnp.asarray, init(params)), update=update_extra)
