"""Steps with a carry for Hypothesis to draw; a `CarryRecipe` is plain data, in the form of `generate.Recipe`.

Every stage is a dense layer. It reads some of the carried values, and updates its own:

- `mean`: a running mean of the stage's activations, which the stage reads;
- `last`: overwritten by each microbatch, and read by this stage and later ones;
- `total`: of the whole loss, updated and read by the last stage;
- `count`, `key`: updated from nothing but themselves, and read anywhere;
- `input`: a running mean of the microbatches;
- `gradient`: of the stage's weight, read in the backward alone;
- `delayed`: a history of the stage's gradients, and the scale that comes of it, which the stage's backward reads, as in
  training with 8-bit floats; `costly`: the same with a scale that no two tasks should compute, and that
  its author computes in the forward;
- `amax`: a history of the stage's weight, which the stage reads;
- `swapped`: two values that change places, read anywhere;
- `reset`: a constant from the second microbatch on; `same`: never updated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jaxquard.pipeline.marks import pipeline_yield

KINDS = (
    "mean",
    "last",
    "total",
    "count",
    "key",
    "input",
    "gradient",
    "swapped",
    "reset",
    "same",
    "delayed",
    "costly",
    "amax",
)
DELAYED = ("delayed", "costly")
WIDTH = 3


@dataclass(frozen=True, slots=True)
class CarryRecipe:
    """A step: for each carried value its kind, its stage and the stages that read it, modulo their number.

    Attributes:
        is_reported: whether the carry of the last microbatch is an output, too.
    """

    num_stages: int
    carries: tuple[tuple[str, int, tuple[int, ...]], ...]
    is_rematted: bool = False
    words: tuple[str, str] = ("mean", "stack")
    is_reported: bool = False

    def names(self, kind: str) -> list[str]:
        return [f"{kind}{number}" for number, (found, *_) in enumerate(self.carries) if found == kind]

    def readers(self, number: int) -> set[int]:
        kind, stage, others = self.carries[number]
        stage %= self.num_stages
        chosen = {other % self.num_stages for other in others}
        return {
            "mean": {stage},
            "last": {other for other in chosen if other >= stage},
            "total": {self.num_stages - 1},
            "gradient": set(),
            "delayed": {stage},
            "costly": {stage},
            "amax": {stage},
        }.get(kind, chosen)


@jax.custom_vjp
def rounded_gradient(hidden: Any, history: Any, scale: Any) -> Any:
    """The value; its gradient is rounded in steps of the scale, and the carry's "gradients" are the next ones."""
    return hidden


def _next_scale(history: Any, scale: Any) -> Any:
    new_scale = jnp.where(jnp.max(history) > 0, jnp.max(history), 1.0)
    return scale.at[0].set(new_scale).at[1].set(jnp.sum(scale)) if scale.ndim else new_scale


def _round_gradient(residuals: Any, gradient: Any) -> Any:
    history, scale, new_scale = residuals
    if not scale.ndim:
        new_scale = _next_scale(history, scale)
    rounded = gradient * (1 + 0.1 * jnp.sin(jnp.sum(new_scale)))
    new_history = jnp.roll(history, -1).at[0].set(jnp.max(jnp.abs(gradient)))
    return rounded, new_history, new_scale


def _remember(hidden: Any, history: Any, scale: Any) -> Any:
    return hidden, (history, scale, _next_scale(history, scale) if scale.ndim else None)


rounded_gradient.defvjp(_remember, _round_gradient)


class _Microbatch:
    """The loss of one microbatch; `carry` becomes the next one on the way."""

    def __init__(self, recipe: CarryRecipe, carry: dict[str, Any]) -> None:
        self.recipe, self.before, self.after = recipe, carry, dict(carry)

    def loss(self, params: list[Any], x: Any, delayed: dict[str, Any]) -> Any:
        hidden = x
        for number, (kind, *_) in enumerate(self.recipe.carries):
            self._update_alone(kind, f"{kind}{number}", x)
            if kind == "amax":
                weight = jax.lax.stop_gradient(params[self.recipe.carries[number][1] % self.recipe.num_stages])
                name = f"amax{number}"
                self.after[name] = jnp.roll(self.before[name], -1).at[0].set(jnp.max(jnp.abs(weight)))
        for stage in range(self.recipe.num_stages):
            layer = jax.checkpoint(self._layer) if self.recipe.is_rematted else self._layer
            hidden = layer(params[stage], hidden, [self._read(number, stage) for number in self._read_by(stage)])
            for number in self._read_by(stage):
                name = f"{self.recipe.carries[number][0]}{number}"
                if name in delayed:
                    hidden = rounded_gradient(hidden, *delayed[name])
            self._update_stage(stage, hidden)
            if stage < self.recipe.num_stages - 1:
                hidden = pipeline_yield(hidden)
        loss = jnp.mean(hidden**2)
        for name in self.recipe.names("total"):
            self.after[name] = self.before[name] + jax.lax.stop_gradient(loss)
        return loss

    @staticmethod
    def _layer(weight: Any, hidden: Any, scales: list[Any]) -> Any:
        hidden = jnp.tanh(hidden @ weight)
        for scale in scales:
            hidden = hidden * (1 + 0.1 * jnp.tanh(scale))
        return hidden

    def _read_by(self, stage: int) -> list[int]:
        return [number for number in range(len(self.recipe.carries)) if stage in self.recipe.readers(number)]

    def _read(self, number: int, stage: int) -> Any:
        kind = self.recipe.carries[number][0]
        value = self.before[f"{kind}{number}"]
        if kind == "key":
            return jax.random.normal(jax.random.fold_in(value, stage), (WIDTH,))
        if kind == "swapped":
            return value[0] - value[1]
        if kind in DELAYED:
            return jnp.float32(0)
        return value.astype(jnp.float32)

    def _update_alone(self, kind: str, name: str, x: Any) -> None:
        before = self.before[name]
        if kind == "count":
            self.after[name] = before + 1
        elif kind == "key":
            self.after[name] = jax.random.split(before)[0]
        elif kind == "input":
            self.after[name] = 0.5 * before + jnp.mean(x, 0)
        elif kind == "swapped":
            self.after[name] = before[::-1]
        elif kind == "reset":
            self.after[name] = jnp.zeros_like(before)

    def _update_stage(self, stage: int, hidden: Any) -> None:
        mean = jax.lax.stop_gradient(jnp.mean(hidden, 0))
        for number, (kind, home, _) in enumerate(self.recipe.carries):
            if home % self.recipe.num_stages == stage and kind == "mean":
                self.after[f"mean{number}"] = 0.9 * self.before[f"mean{number}"] + 0.1 * mean
            elif home % self.recipe.num_stages == stage and kind == "last":
                self.after[f"last{number}"] = mean


def make_step(recipe: CarryRecipe) -> Callable[..., Any]:
    """The step in the oracle's form."""

    def step(accumulate: Any, state: Any, batch: Any) -> Any:
        def microbatch_grads(carry: Any, x: Any) -> Any:
            def loss_fn(params: Any, delayed: Any) -> Any:
                run = _Microbatch(recipe, carry)
                return run.loss(params, x, delayed), run.after

            delayed = {name: value for name, value in carry.items() if name.startswith(DELAYED)}
            (loss, after), (grads, delayed) = jax.value_and_grad(loss_fn, (0, 1), has_aux=True)(
                state["params"], delayed
            )
            after = {**after, **delayed}
            for number, (kind, stage, _) in enumerate(recipe.carries):
                if kind == "gradient":
                    name = f"gradient{number}"
                    after[name] = 0.5 * carry[name] + jnp.sum(grads[stage % recipe.num_stages], 0)
            return after, (grads, loss, after if recipe.is_reported else ())

        words = (*recipe.words, "last")
        carry, (grads, losses, last) = accumulate(microbatch_grads, words, carry=state["carry"])(batch)
        params = [param - 0.1 * grad for param, grad in zip(state["params"], grads, strict=True)]
        return {"params": params, "carry": carry}, losses, last

    return step


def make_arguments(recipe: CarryRecipe, num_microbatches: int) -> tuple[Any, Any]:
    """A state and a batch."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    first = {
        "count": lambda: jnp.int32(3),
        "key": lambda: jax.random.key(int(rng.integers(100))),
        "total": lambda: array(),
        "swapped": lambda: (array(), array()),
        "delayed": lambda: (jnp.abs(array(WIDTH)), jnp.ones(())),
        "costly": lambda: (jnp.abs(array(WIDTH)), jnp.ones(2)),
    }
    carry = {
        f"{kind}{number}": first.get(kind, lambda: array(WIDTH))() for number, (kind, *_) in enumerate(recipe.carries)
    }
    state = {"params": [array(WIDTH, WIDTH) for _ in range(recipe.num_stages)], "carry": carry}
    return state, array(num_microbatches, 4, WIDTH)


@st.composite
def carry_recipes(draw, num_stages: int) -> CarryRecipe:
    stages = st.integers(0, max(0, num_stages - 1))
    carries = st.tuples(st.sampled_from(KINDS), stages, st.lists(stages, max_size=3).map(tuple))
    return CarryRecipe(
        num_stages=num_stages,
        carries=tuple(draw(st.lists(carries, min_size=1, max_size=4))),
        is_rematted=draw(st.booleans()),
        words=draw(st.sampled_from([("mean", "stack"), ("sum", "last"), ("mean", "max")])),
        is_reported=draw(st.booleans()),
    )
