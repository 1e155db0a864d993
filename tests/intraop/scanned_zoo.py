"""The models of the zoo with their layers in a `lax.scan`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.models.layers.parts import fold
from jaxquard.models.layers.stages import rematted
from jaxquard.models.training import TrainingStep, training_step
from jaxquard.models.zoo import find_model

Scan = Callable[..., Any]


def stack(trees: Any) -> Any:
    """One tree whose leaves have the trees as their first dim."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


class Scanned:
    """A model of the zoo whose layers, or runs of different layers, are stacked and scanned over."""

    def __init__(self, module: Any, *, scan: Scan = lax.scan, remat: Any = False, is_outer: bool = False):
        self._module = module
        self._scan = scan
        self._remat = remat
        self._is_outer = is_outer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def init(self, key: Any, config: Any) -> Any:
        params = self._module.init(key, config)
        period = _period(params["layers"])
        runs = [stack(params["layers"][place::period]) for place in range(period)]
        return params | {"layers": runs}

    def loss(self, params: Any, batch: Any, config: Any, *, key: Any = None) -> Any:
        with mock.patch.object(self._module, "run_layers", self._run_layers):
            return self._module.loss(params, batch, config, key=key)

    def _run_layers(self, apply_layer: Any, layers: Any, values: Any, *, key: Any, **_: Any) -> Any:
        apply_one = apply_layer if self._is_outer else rematted(apply_layer, self._remat)
        period = len(layers)

        def body(carry, of_layer):
            values, number = carry
            for place, params in enumerate(of_layer):
                values = apply_one(params, values, fold(key, number * period + place))
            return (values, number + 1), None

        def run(values, layers):
            (values, _), _ = self._scan(body, (values, jnp.int32(0)), layers)
            return values

        return (rematted(run, self._remat) if self._is_outer else run)(values, layers)


def scanned_step(
    name: str, *, optimizer: str = "sgd", batch_size: int = 8, changes: Any = None, **options: Any
) -> TrainingStep:
    """A training step of a scanned model."""
    model = find_model(name)
    config = replace(model.config, **(changes or {}))
    module: Any = Scanned(model.module, **options)
    return training_step(module, config, optimizer=optimizer, batch_size=batch_size, learning_rate=0.1)


def scanned_types(name: str, **options: Any) -> Any:
    """A step with the shapes of its arguments."""
    made = scanned_step(name, **options)
    return made.train_step, (jax.eval_shape(made.init_state, jax.random.key(0)), made.batch)


def _period(layers: Any) -> int:
    """After how many layers they repeat."""
    shapes = [jax.tree.map(jnp.shape, layer) for layer in layers]
    return next(period for period in range(1, len(layers) + 1) if shapes[:-period] == shapes[period:])
