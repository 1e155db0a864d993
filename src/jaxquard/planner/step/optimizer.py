"""The update of a training step, by an optimizer as Optax has them.

Some transformations take more than gradients and parameters. The loss is there (`value=`): those that take it, such as
`optax.contrib.reduce_on_plateau`, get it. A line search evaluates the loss again (`value_fn=`): a planned step computes
it once, in its tasks, so such an optimizer is refused.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxquard.errors import PlanError

_MISSING = re.compile(r"missing \d+ required keyword-only arguments?: (.+)")


class GradientOptimizer(Protocol):
    """An optimizer as Optax has them: `optax.adam(1e-3)` is one."""

    @property
    def init(self) -> Callable[..., Any]: ...

    @property
    def update(self) -> Callable[..., tuple[Any, Any]]: ...


def update_params(
    optimizer: GradientOptimizer, grads: Any, opt_state: Any, params: Any, *, loss: Any
) -> tuple[Any, Any]:
    """Returns the new parameters and the new state of the optimizer.

    Raises:
        PlanError: if the optimizer needs more than the gradients, the parameters and the loss.
    """
    more = {"value": loss} if _takes_value(optimizer.update) else {}
    try:
        updates, opt_state = optimizer.update(grads, opt_state, params, **more)
    except TypeError as error:
        missing = _MISSING.search(str(error))
        if missing is None:
            raise
        raise PlanError(
            f"the optimizer needs {missing[1]} to update, but a planned step has the gradients, the parameters and the "
            "loss (value=) alone, and computes each of them once. Use one without a line search, as "
            "optax.lbfgs(linesearch=None) is."
        ) from error
    return apply_updates(params, updates), opt_state


def apply_updates(params: Any, updates: Any) -> Any:
    """Adds updates to parameters, whose dtypes stay; a parameter without one stays as it is."""

    def add(param: Any, update: Any) -> Any:
        return param if update is None else jnp.asarray(param + update).astype(jnp.asarray(param).dtype)

    return jax.tree.map(add, params, updates, is_leaf=lambda leaf: leaf is None)


def _takes_value(update: Callable[..., Any]) -> bool:
    """Returns true for an update that takes the loss, by its name or among all others."""
    try:
        parameters = inspect.signature(update).parameters
    except (TypeError, ValueError):  # A function of an extension module need not have a signature.
        return False
    takes_all = any(found.kind is inspect.Parameter.VAR_KEYWORD for found in parameters.values())
    return takes_all or "value" in parameters
