"""Steps with a `pipeline_scan`, for Hypothesis to draw (see `generate`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

from jaxquard.pipeline.marks import pipeline_yield
from jaxquard.pipeline.stacks import pipeline_scan
from tests.pipeline.generate import make_batch, make_optimizer


@dataclass(frozen=True, slots=True)
class ScanRecipe:
    """A scan over layers.

    Attributes:
        first_stages: marked stages before the scan.
        last_stages: marked stages after it.
        has_outputs: whether the layers give outputs beside the carry, and the loss uses them.
        is_tied: whether every layer uses one more weight, which the head uses too.
        decay: whether a penalty on the stacked leaves themselves is added to the loss.
    """

    num_layers: int
    num_scan_stages: int
    first_stages: int = 0
    last_stages: int = 0
    has_outputs: bool = False
    has_dropout: bool = False
    is_tied: bool = False
    is_rematted: bool = False
    decay: bool = False
    optimizer: str = "sgd"
    grads: str = "sum"


def make_scan_step(recipe: ScanRecipe) -> Callable[..., Any]:
    optimizer = make_optimizer(recipe.optimizer)

    def step(accumulate, state, batch):
        def microbatch_grads(microbatch):
            value, grads = jax.value_and_grad(scan_loss)(state["params"], microbatch, recipe)
            return grads, value

        grads, losses = accumulate(microbatch_grads, (recipe.grads, "stack"))(batch)
        updates, optimizer_state = optimizer.update(grads, state["optimizer"], state["params"])
        norm = optax.tree.norm(grads)
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer_state}, losses, norm

    return step


def scan_loss(params: Any, microbatch: Any, recipe: ScanRecipe) -> Any:
    hidden = jnp.tanh(microbatch["x"] @ params["head"])
    for _ in range(recipe.first_stages):
        hidden = pipeline_yield(jnp.tanh(hidden @ params["tied"]))

    def layer(carry, weights):
        value, number = carry
        after = jnp.tanh(value @ weights["kernel"] + weights["bias"])
        if recipe.is_tied:
            after = after @ params["tied"]
        if recipe.has_dropout:
            kept = jax.random.bernoulli(jax.random.fold_in(microbatch["key"], number), 0.8, after.shape)
            after = jnp.where(kept, after, 0.0)
        return (value + after, number + 1), jnp.mean(after) if recipe.has_outputs else None

    body = jax.checkpoint(layer) if recipe.is_rematted else layer
    (hidden, _), outputs = pipeline_scan(
        body, (hidden, jnp.int32(0)), params["layers"], num_stages=recipe.num_scan_stages, name="layers"
    )
    for _ in range(recipe.last_stages):
        hidden = jnp.tanh(pipeline_yield(hidden) @ params["tied"])
    loss = jnp.mean(jnp.square(hidden @ params["head"].T))
    if recipe.has_outputs:
        loss = loss + 0.1 * jnp.sum(outputs * jnp.arange(1.0, recipe.num_layers + 1))
    if recipe.decay:
        loss = loss + 0.01 * sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params["layers"]))
    return loss


def make_scan_arguments(recipe: ScanRecipe, num_microbatches: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) * 0.6, jnp.float32)  # noqa: E731
    params = {
        "head": draw(3, 3),
        "tied": draw(3, 3),
        "layers": {"kernel": draw(recipe.num_layers, 3, 3), "bias": draw(recipe.num_layers, 3)},
    }
    return {"params": params, "optimizer": make_optimizer(recipe.optimizer).init(params)}, make_batch(num_microbatches)


@st.composite
def scan_recipes(draw, num_stages: int) -> ScanRecipe:
    num_scan_stages = draw(st.integers(1, num_stages))
    first_stages = draw(st.integers(0, num_stages - num_scan_stages))
    return ScanRecipe(
        num_layers=num_scan_stages + draw(st.integers(0, 3)),
        num_scan_stages=num_scan_stages,
        first_stages=first_stages,
        last_stages=num_stages - num_scan_stages - first_stages,
        has_outputs=draw(st.booleans()),
        has_dropout=draw(st.booleans()),
        is_tied=draw(st.booleans()),
        is_rematted=draw(st.booleans()),
        decay=draw(st.booleans()),
        optimizer=draw(st.sampled_from(("sgd", "momentum", "adamw"))),
        grads=draw(st.sampled_from(("sum", "mean"))),
    )
