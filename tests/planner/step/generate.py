"""Programs and plans for Hypothesis to draw: small losses of many kinds, and everything that a plan can say of them.

A `Recipe` and a `Wish` are plain data, so that a failing example prints as something one can read and paste.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from hypothesis import strategies as st
from jax import lax

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.planner.record.plan import Plan, Recompute
from jaxquard.planner.step.one_microbatch import OneMicrobatch
from jaxquard.planner.step.stage_boundaries import find_stage_boundaries
from tests.planner.step.plans import make_plan

LAYERS = ("mlp", "gated", "attention", "checkpointed", "selective", "jitted", "normed")
WIDTH, VOCABULARY, LENGTH = 8, 16, 4


@dataclass(frozen=True, slots=True)
class Recipe:
    """A loss.

    Attributes:
        layers: one word each; a tuple of a word and a count stands for a scan over stacked layers.
        is_tied: multiplies by the table of embeddings at the end.
        skips: adds the activations of the first layer to those of the last.
    """

    layers: tuple[Any, ...]
    is_tied: bool = False
    skips: bool = False
    has_aux: bool = False
    optimizer: str = "sgd"
    loss_reduction: str = "mean"


@dataclass(frozen=True, slots=True)
class Wish:
    """The choices of a plan, as numbers that are fitted to the step.

    Attributes:
        seed: of the choices of blocks, and of where stages begin.
    """

    axes: tuple[int, ...] = (1,)
    num_microbatches: int = 2
    num_stages: int = 2
    schedule: str = "1f1b"
    storage: str = "as used"
    recompute: Recompute = Recompute.NONE
    seed: int = 0


def recipes() -> st.SearchStrategy[Recipe]:
    layer = st.one_of(st.sampled_from(LAYERS), st.tuples(st.sampled_from(LAYERS), st.integers(2, 3)))
    return st.builds(
        Recipe,
        layers=st.lists(layer, min_size=2, max_size=3).map(tuple),
        is_tied=st.booleans(),
        skips=st.booleans(),
        has_aux=st.booleans(),
        optimizer=st.sampled_from(["sgd", "adam"]),
        loss_reduction=st.sampled_from(["mean", "sum"]),
    )


def wishes(**fixed: Any) -> st.SearchStrategy[Wish]:
    options = {
        "axes": st.sampled_from([(1,), (2,), (2, 2)]),
        "num_microbatches": st.sampled_from([1, 2, 4]),
        "num_stages": st.integers(1, 4),
        "schedule": st.sampled_from(["1f1b", "gpipe", "interleaved", "zero-bubble-h1", "zero-bubble-v", "looped-bfs"]),
        "storage": st.sampled_from(["as used", "zero 1", "zero 2", "zero 3"]),
        "recompute": st.sampled_from(list(Recompute)),
        "seed": st.integers(0, 1000),
    }
    return st.builds(Wish, **{**options, **{name: st.just(value) for name, value in fixed.items()}})


# The loss.


def _weights(kind: str) -> dict[str, tuple[int, ...]]:
    shapes = {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    if kind == "attention":
        return {"qkv": (WIDTH, 3, 2, WIDTH // 2), "out": (2, WIDTH // 2, WIDTH)}
    if kind == "gated":
        return {**shapes, "gate": (WIDTH, 2 * WIDTH)}
    if kind == "normed":
        return {**shapes, "scale": (WIDTH,), "bias": (2 * WIDTH,)}
    return shapes


def _mlp(weights: Any, hidden: Any) -> Any:
    return hidden + jnp.tanh(hidden @ weights["up"]) @ weights["down"]


def _gated(weights: Any, hidden: Any) -> Any:
    return hidden + (jax.nn.silu(hidden @ weights["gate"]) * (hidden @ weights["up"])) @ weights["down"]


def _attention(weights: Any, hidden: Any) -> Any:
    query, key, value = jnp.einsum("btd,dchk->cbhtk", hidden, weights["qkv"])
    scores = jnp.einsum("bhtk,bhsk->bhts", query, key) * query.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    mixed = jnp.einsum("bhts,bhsk->bthk", jax.nn.softmax(scores), value)
    return hidden + jnp.einsum("bthk,hkd->btd", mixed, weights["out"])


def _normed(weights: Any, hidden: Any) -> Any:
    normal = hidden * lax.rsqrt(jnp.mean(jnp.square(hidden), -1, keepdims=True) + 1e-3) * weights["scale"]
    return hidden + jax.nn.relu(normal @ weights["up"] + weights["bias"]) @ weights["down"]


_APPLY = {
    "mlp": _mlp,
    "gated": _gated,
    "attention": _attention,
    "normed": _normed,
    "jitted": jax.jit(_mlp),
    "checkpointed": jax.checkpoint(_mlp),
    "selective": jax.checkpoint(_gated, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
}
_KIND = {"selective": "gated"}


def make_loss(recipe: Recipe) -> Any:
    """The loss of a recipe."""

    def loss(params: Any, batch: Any) -> Any:
        hidden = first = params["table"][batch["tokens"]]
        norms = []
        for weights, layer in zip(params["layers"], recipe.layers, strict=True):
            if isinstance(layer, tuple):
                hidden, _ = lax.scan(lambda h, w, apply=_APPLY[layer[0]]: (apply(w, h), None), hidden, weights)
            else:
                hidden = _APPLY[layer](weights, hidden)
            norms.append(jnp.mean(jnp.abs(hidden)))
        if recipe.skips:
            hidden = hidden + first
        logits = hidden @ (params["table"].T if recipe.is_tied else params["head"])
        errors = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["targets"][..., None], -1)
        value = jnp.mean(errors) if recipe.loss_reduction == "mean" else jnp.sum(errors)
        return (value, {"norms": norms, "rows": errors.shape[0]}) if recipe.has_aux else value

    return loss


def make_params(recipe: Recipe) -> Any:
    keys = iter(jax.random.split(jax.random.key(7), 64))
    layers = []
    for layer in recipe.layers:
        kind, count = layer if isinstance(layer, tuple) else (layer, 0)
        shapes = _weights(_KIND.get(kind, kind))
        stacked = {name: ((count, *shape) if count else shape) for name, shape in shapes.items()}
        layers.append({name: 0.2 * jax.random.normal(next(keys), shape) for name, shape in stacked.items()})
    params = {"table": 0.5 * jax.random.normal(next(keys), (VOCABULARY, WIDTH)), "layers": layers}
    return params if recipe.is_tied else {**params, "head": 0.5 * jax.random.normal(next(keys), (WIDTH, VOCABULARY))}


def make_batch(num_rows: int = 16) -> Any:
    keys = jax.random.split(jax.random.key(3))
    tokens, targets = (jax.random.randint(key, (num_rows, LENGTH), 0, VOCABULARY) for key in keys)
    return {"tokens": tokens, "targets": targets}


def make_optimizer(recipe: Recipe) -> Any:
    return optax.adam(1e-2, eps=1e-2) if recipe.optimizer == "adam" else optax.sgd(0.1)


# The plan.


def fit_plan(wish: Wish, one: OneMicrobatch, analysis: Analysis) -> Plan:
    """The plan that a wish comes to for a step: as many stages as there may be, of those it wants."""
    draw = random.Random(wish.seed)
    legal = [boundary.segment for boundary in find_stage_boundaries(one, analysis) if boundary.can_begin]
    schedule, num_stages, num_actors = _fit_schedule(wish, len(legal) + 1)
    begins = sorted(draw.sample(legal, num_stages - 1))
    assignment = {
        block.number: draw.choice(block_choices(block, analysis.axes, batch_axis=None)) for block in analysis.blocks
    }
    return make_plan(
        one,
        analysis,
        stops=[*begins, len(analysis.segments)],
        schedule=schedule,
        num_actors=num_actors,
        assignment=assignment,
        storage=wish.storage,
        recompute=wish.recompute,
    )


def _fit_schedule(wish: Wish, most: int) -> tuple[str, int, int]:
    num_stages = min(wish.num_stages, most)
    if num_stages == 1:
        return "none", 1, 1
    if wish.schedule in ("interleaved", "looped-bfs"):
        num_stages -= num_stages % 2
        # Interleaved 1F1B wants as many microbatches as actors, or a multiple.
        num_actors = 2 if num_stages == 4 and wish.num_microbatches % 2 == 0 else 1
        return (wish.schedule, num_stages, num_actors) if num_stages > 1 else ("none", 1, 1)
    if wish.schedule == "zero-bubble-v":
        num_stages -= num_stages % 2
        return wish.schedule, num_stages, num_stages // 2
    return wish.schedule, num_stages, num_stages


def axes_of(sizes: Sequence[int]) -> dict[str, int]:
    return dict(zip(("data", "model"), sizes, strict=False))
