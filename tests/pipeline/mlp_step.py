"""A small step with the features that the passes look at, in the oracle's form (see `oracle`)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxquard.pipeline.marks import pipeline_yield

WIDTH = 4


def adamw() -> optax.GradientTransformation:
    """A common optimizer: clipping by the global norm, AdamW, a learning-rate schedule."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, eps=0.1))


class MlpStep:
    """`step(accumulate, state, batch)` of an MLP of square layers, `num_layers // num_stages` a stage.

    Args:
        is_tied: the last stage multiplies with the transposed weight of the first.
        is_rematted: every layer is checkpointed.
        dtype: weights are cast to it before they are used.
        skips: the input of the first layer is added before the last one.
        has_dropout: with a key folded with the number of the layer.
    """

    def __init__(
        self,
        num_stages: int,
        *,
        num_layers: int | None = None,
        is_tied: bool = False,
        is_rematted: bool = False,
        dtype: Any = None,
        skips: bool = False,
        has_dropout: bool = False,
        optimizer: optax.GradientTransformation | None = None,
    ) -> None:
        self.num_stages, self.num_layers = num_stages, num_layers or num_stages
        self.is_tied, self.is_rematted, self.dtype = is_tied, is_rematted, dtype
        self.skips, self.has_dropout = skips, has_dropout
        self.optimizer = optimizer or optax.sgd(0.1)

    def __call__(self, accumulate: Any, state: Any, batch: Any) -> Any:
        def microbatch_grads(microbatch):
            value, grads = jax.value_and_grad(self.loss)(state["params"], microbatch)
            return grads, value

        grads, losses = accumulate(microbatch_grads)(batch)
        updates, optimizer = self.optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, losses

    def loss(self, params: Any, microbatch: Any) -> Any:
        hidden = start = jnp.tanh(microbatch["x"])
        apply = jax.checkpoint(self.layer) if self.is_rematted else self.layer
        for number, layer in enumerate(params["layers"]):
            if number and number % (self.num_layers // self.num_stages) == 0:
                hidden = pipeline_yield(hidden)
            if self.skips and number == self.num_layers - 1:
                hidden = hidden + start
            hidden = apply(layer, hidden)
            if self.has_dropout:
                key = jax.random.fold_in(microbatch["key"], number)
                hidden = jnp.where(jax.random.bernoulli(key, 0.8, hidden.shape), hidden, 0.0)
        if self.is_tied:
            hidden = hidden @ params["layers"][0]["kernel"].T
        return jnp.mean(jnp.square(hidden - microbatch["y"]))

    def layer(self, layer: Any, hidden: Any) -> Any:
        kernel = layer["kernel"] if self.dtype is None else layer["kernel"].astype(self.dtype).astype(jnp.float32)
        return jnp.tanh(hidden @ kernel + layer["bias"])

    def arguments(self, num_microbatches: int) -> tuple[Any, Any]:
        """State and batch."""
        rng = np.random.default_rng(0)
        draw = lambda *shape: jnp.asarray(rng.normal(size=shape) * 0.5, jnp.float32)  # noqa: E731
        params = {"layers": [{"kernel": draw(WIDTH, WIDTH), "bias": draw(WIDTH)} for _ in range(self.num_layers)]}
        state = {"params": params, "optimizer": self.optimizer.init(params)}
        batch = {"x": draw(num_microbatches, 2, WIDTH), "y": draw(num_microbatches, 2, WIDTH)}
        if self.has_dropout:
            batch["key"] = jax.random.split(jax.random.key(1), num_microbatches)
        return state, batch


@functools.cache
def weight_type() -> str:
    """The type of a kernel and of its gradient, as a program writes it."""
    return f"float32[{WIDTH},{WIDTH}]"
