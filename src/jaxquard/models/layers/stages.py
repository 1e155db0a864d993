"""Runs a list of layers with marks between stages; the models know nothing else of pipelines."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from jaxquard.models.layers.parts import Params, fold

Remat = bool | Callable[..., bool]
Mark = Callable[[Any], Any]


def no_mark(values: Any) -> Any:
    """The identity: what a loss is marked with where nobody asks for stages."""
    return values


def run_layers(
    apply_layer: Callable[..., Any],
    layers: Sequence[Params],
    values: Any,
    *,
    mark: Mark,
    num_stages: int,
    remat: Remat,
    key: PRNGKeyArray | None,
) -> Any:
    """Applies every layer in turn: `values = apply_layer(layer_params, values, layer_key)`.

    Args:
        apply_layer: one layer, from what the layers pass on (`values`, an array or a pytree) to the same.
        mark: called on the values at the end of each stage but the last.
        num_stages: the number of stages, of even length; at most one per layer.
        remat: recompute each layer in the backward pass; or a `jax.checkpoint` policy.
        key: for dropout; each layer has its own part of it.
    """
    if not 1 <= num_stages <= len(layers):
        raise ValueError(
            f"num_stages={num_stages}, but a stage needs a layer and the model has {len(layers)}. "
            f"Choose 1 to {len(layers)} stages."
        )
    apply_layer = rematted(apply_layer, remat)
    marked_layers = _marked_layers(len(layers), num_stages)
    for layer, layer_params in enumerate(layers):
        if layer in marked_layers:
            values = mark(values)
        values = apply_layer(layer_params, values, fold(key, layer))
    return values


def rematted(apply_layer: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """The layer itself, or under `jax.checkpoint`."""
    if remat is False:
        return apply_layer
    return jax.checkpoint(apply_layer, policy=None if remat is True else remat)


def _marked_layers(num_layers: int, num_stages: int) -> set[int]:
    """The layers before which a stage ends; where they do not divide, the first stages take one more."""
    layers, extra = divmod(num_layers, num_stages)
    return {stage * layers + min(stage, extra) for stage in range(1, num_stages)}
