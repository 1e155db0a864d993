"""Random losses: operations row by row, and others that mix rows, in any order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

ROWS, FEATURES = 8, 4
KEY = jax.random.key(5)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, on values made before, by their numbers from the last."""

    name: str
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Program:
    """A loss: steps, and how the last value becomes one number."""

    steps: tuple[Step, ...]
    end: str
    has_penalty: bool


def make_weights() -> Any:
    return jax.random.normal(jax.random.key(1), (FEATURES, FEATURES)) / 2


def make_batch(rows: int = ROWS) -> Any:
    one, other, third = jax.random.split(jax.random.key(2), 3)
    return {
        "x": jax.random.normal(one, (rows, FEATURES)),
        "mask": (jax.random.uniform(other, (rows,)) < 0.6).astype(jnp.float32),
        "label": jax.random.randint(third, (rows,), 0, FEATURES),
    }


# All of these take and return arrays of rows x features.
_MAPS: dict[str, Callable[..., Any]] = {
    "tanh": lambda x, y, w, b: jnp.tanh(x),
    "square": lambda x, y, w, b: x**2,
    "abs": lambda x, y, w, b: jnp.abs(x),
    "scale": lambda x, y, w, b: 0.5 * x,
    "shift": lambda x, y, w, b: x + 1,
    "detach": lambda x, y, w, b: lax.stop_gradient(x),
    "round": lambda x, y, w, b: x.astype(jnp.bfloat16).astype(jnp.float32),
    "integers": lambda x, y, w, b: (3 * x).astype(jnp.int32).astype(jnp.float32),
    "add": lambda x, y, w, b: x + y,
    "subtract": lambda x, y, w, b: x - y,
    "multiply": lambda x, y, w, b: x * y,
    "divide": lambda x, y, w, b: x / (1 + jnp.abs(y)),
    "largest": lambda x, y, w, b: jnp.maximum(x, y),
    "choose": lambda x, y, w, b: jnp.where(x > 0, x, y),
    "mask": lambda x, y, w, b: jnp.where(b["mask"][:, None] > 0, x, 0.0),
    "weigh": lambda x, y, w, b: x * b["mask"][:, None],
    "product": lambda x, y, w, b: x @ w,
    "products": lambda x, y, w, b: jnp.einsum("bf,bg->bfg", x, y) @ w[0],
    "softmax": lambda x, y, w, b: jax.nn.softmax(x, axis=-1),
    "norm": lambda x, y, w, b: x - x.mean(-1, keepdims=True),
    "sort": lambda x, y, w, b: jnp.sort(x, axis=-1),
    "cumulate": lambda x, y, w, b: jnp.cumsum(x, axis=-1),
    "label": lambda x, y, w, b: x[jnp.arange(len(x)), b["label"]][:, None] + y,
    "lookup": lambda x, y, w, b: w[b["label"]] + x,
    "pairs": lambda x, y, w, b: (
        x.reshape(-1, 2, FEATURES) - y.reshape(-1, 2, FEATURES).mean(1, keepdims=True)
    ).reshape(x.shape),
    "scanned": lambda x, y, w, b: lax.scan(lambda c, v: (c, jnp.tanh(v @ w) + c), w[0], x)[1],
    "mapped": lambda x, y, w, b: jax.vmap(lambda u, v: jnp.where(u[0] > 0, u, v @ w))(x, y),
    "concatenated": lambda x, y, w, b: jnp.concatenate([x[:, :2], y[:, 2:]], axis=1),
    "backwards": lambda x, y, w, b: x[::-1],
    "flat": lambda x, y, w, b: jnp.tanh(x.reshape(-1)).reshape(x.shape),
    "turned": lambda x, y, w, b: jnp.tanh(x.T).T,
    "checkpointed": lambda x, y, w, b: jax.checkpoint(lambda u: jnp.tanh(u @ w))(x),
}
# These mix rows, or know where they stand.
_MIXES: dict[str, Callable[..., Any]] = {
    "batch mean": lambda x, y, w, b: x - y.mean(0),
    "batch sum": lambda x, y, w, b: x + y.sum(0),
    "batch max": lambda x, y, w, b: x - y.max(0),
    "batch norm": lambda x, y, w, b: x / jnp.sqrt(1 + y.var(0)),
    "batch softmax": lambda x, y, w, b: jax.nn.softmax(x, axis=0),
    "all pairs": lambda x, y, w, b: jax.nn.softmax(x @ y.T) @ y,
    "covariance": lambda x, y, w, b: x @ (y.T @ y / len(y)),
    "roll": lambda x, y, w, b: jnp.roll(x, 1, axis=0),
    "halves": lambda x, y, w, b: jnp.concatenate([x[len(x) // 2 :], x[: len(x) // 2]]),
    "sort rows": lambda x, y, w, b: jnp.sort(x, axis=0),
    "cumulate rows": lambda x, y, w, b: jnp.cumsum(x, axis=0),
    "position": lambda x, y, w, b: x * jnp.arange(len(x))[:, None],
    "count": lambda x, y, w, b: x * len(x),
    "first row": lambda x, y, w, b: x + y[0],
    "even rows": lambda x, y, w, b: x + jnp.repeat(y[::2], 2, axis=0),
    "eighths": lambda x, y, w, b: (
        x.reshape(2, -1, FEATURES) - x.reshape(2, -1, FEATURES).mean(1, keepdims=True)
    ).reshape(x.shape),
    "noise": lambda x, y, w, b: x + jax.random.normal(KEY, x.shape),
    "gathered": lambda x, y, w, b: x + y[b["label"] % len(y)],
    "scattered": lambda x, y, w, b: x.at[b["label"] % len(x)].add(y),
    "masked mean": lambda x, y, w, b: x - (y * b["mask"][:, None]).sum() / jnp.maximum(b["mask"].sum(), 1),
    "running": lambda x, y, w, b: lax.scan(lambda c, v: (0.5 * c + v, c), jnp.zeros(FEATURES), x)[1],
    "any": lambda x, y, w, b: jnp.where((y > 2).any(), x, 2 * x),
    "by the mean": lambda x, y, w, b: lax.cond(y.mean() > 0, jnp.tanh, jnp.sin, x),
    "total": lambda x, y, w, b: x * lax.scan(lambda c, v: (c + v.sum(), None), 0.0, y)[0],
    "transposed": lambda x, y, w, b: x + jnp.tanh(y.reshape(FEATURES, -1)).reshape(x.shape),
}
_ENDS: dict[str, Callable[..., Any]] = {
    "mean": lambda x, b: x.mean(),
    "sum": lambda x, b: x.sum(),
    "mean of sums": lambda x, b: x.sum(-1).mean(),
    "masked": lambda x, b: (x.sum(-1) * b["mask"]).sum() / b["mask"].sum(),
    "max": lambda x, b: x.max(),
    "root": lambda x, b: jnp.sqrt(jnp.abs(x.mean()) + 1),
    "scan": lambda x, b: lax.scan(lambda c, v: (c + v.mean(), None), 0.0, x)[0] / len(x),
    "mean of rows": lambda x, b: jax.vmap(jnp.mean)(x).mean(),
}


def programs() -> st.SearchStrategy[Program]:
    """Mostly row by row, now and then with an operation that mixes rows."""
    name = st.one_of(*[st.sampled_from(sorted(_MAPS))] * 4, st.sampled_from(sorted(_MIXES)))
    step = st.builds(Step, name, st.integers(0, 3), st.integers(0, 3))
    return st.builds(
        Program, st.lists(step, min_size=1, max_size=6).map(tuple), st.sampled_from(sorted(_ENDS)), st.booleans()
    )


def make_loss(program: Program) -> Callable[[Any, Any], Any]:
    def loss(weights: Any, batch: Any) -> Any:
        values: Sequence[Any] = [batch["x"], jnp.tanh(batch["x"] @ weights)]
        for step in program.steps:
            operands = [values[-1 - place % len(values)] for place in (step.first, step.second)]
            values = [*values, (_MAPS | _MIXES)[step.name](*operands, weights, batch)]
        found = _ENDS[program.end](values[-1], batch)
        return found + 0.1 * jnp.sum(weights**2) if program.has_penalty else found

    return loss
