"""Metrics of a step that are made on request: the norm of the gradients, and the learning rate."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxquard.errors import PlanError

METRICS = ("grad_norm", "learning_rate")

# A metric's name, and for a learning rate its function of the number of steps, if the user gave one.
StepMetric = tuple[str, Callable[[Any], Any] | None]


def read_metrics(metrics: Sequence[str] | Mapping[str, Callable[[Any], Any] | None]) -> tuple[StepMetric, ...]:
    """Returns the metrics that a user asks for.

    Raises:
        PlanError: if one is not known, or cannot have a function.
    """
    given = dict(metrics) if isinstance(metrics, Mapping) else dict.fromkeys(_words(metrics))
    for name, function in given.items():
        if name not in METRICS:
            raise PlanError(f"metrics={name!r:.80} is not known. Use one of: {', '.join(map(repr, METRICS))}.")
        if function is not None and (name != "learning_rate" or not callable(function)):
            raise PlanError(
                f"metrics: {name!r} has {function!r:.80}. Only 'learning_rate' takes a function, of the number of "
                f"steps; leave it to us with {name!r}: None."
            )
    return tuple(given.items())


def _words(metrics: Any) -> Sequence[Any]:
    return (metrics,) if isinstance(metrics, str) else tuple(metrics)


def step_metrics(metrics: Sequence[StepMetric], *, grads: Any, opt_state: Any, step: Any) -> dict[str, Any]:
    """Returns the metrics of a step.

    Args:
        grads: of the whole batch, as the optimizer gets them.
        opt_state: after the update: it has the hyperparameters that were used.
        step: the number of steps before this one.
    """
    found: dict[str, Any] = {}
    for name, function in metrics:
        if name == "grad_norm":
            found[name] = _global_norm(grads)
        else:
            found[name] = _find_learning_rate(opt_state) if function is None else jnp.asarray(function(step))
    return found


def _global_norm(grads: Any) -> jax.Array:
    """Returns the Euclidean norm of all gradients, in float32 or more."""
    leaves = [grad.astype(jnp.promote_types(grad.dtype, jnp.float32)) for grad in jax.tree.leaves(grads)]
    return jnp.sqrt(sum(jnp.sum(jnp.abs(leaf) ** 2) for leaf in leaves))


def _find_learning_rate(opt_state: Any) -> Any:
    def has_hyperparams(node: Any) -> bool:
        return isinstance(getattr(node, "hyperparams", None), Mapping)

    nodes = filter(has_hyperparams, jax.tree.leaves(opt_state, is_leaf=has_hyperparams))
    found = [node.hyperparams["learning_rate"] for node in nodes if "learning_rate" in node.hyperparams]
    if len(found) == 1:
        return found[0]
    raise PlanError(
        f"metrics: the optimizer's state has {len(found) or 'no'} learning rate{'s' if found else ''}. Make it with "
        "optax.inject_hyperparams, which keeps the one it uses, or give the rate as a function of the number of steps: "
        'metrics={"learning_rate": schedule}.'
    )
