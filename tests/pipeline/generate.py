"""Steps for Hypothesis to draw: stage graphs, optimizers, schedules.

A `Recipe` is plain data, so that a failing example prints as something one can read and paste. `make_step`
turns it into a step in the oracle's form, `make_arguments` into state and a batch for it. Weights are named by
a small pool number and their shape, so that stages share them often.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st
from jax import lax

from jaxquard.ir.task import Phase, Task
from jaxquard.pipeline.marks import pipeline_yield, task
from jaxquard.schedules import (
    Custom,
    DualPipeV,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    LoopedBFS,
    OneFOneB,
    Schedule,
    ZeroBubbleH1,
    ZeroBubbleH2,
    ZeroBubbleV,
)
from jaxquard.schedules.dependences import made_by, needs_of

WIDTHS = (2, 3)
ALL_WORDS = ("sum", "mean", "max", "stack", "last")


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a stage. `source` and `other` count values back from the latest."""

    kind: str
    source: int = 0
    other: int = 0
    pool: int = 0
    width: int = 3


@dataclass(frozen=True, slots=True)
class Stage:
    """The operations of a stage, and how it ends.

    Attributes:
        carried: which other values go through its mark beside the latest.
        carries_flags: whether int, bool and key values go through it too.
        is_jitted: whether the stage, its mark included, is a nested `jax.jit`.
    """

    ops: tuple[Op, ...]
    carried: tuple[int, ...] = ()
    carries_flags: bool = False
    is_jitted: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole step."""

    stages: tuple[Stage, ...]
    optimizer: str = "sgd"
    grads: str = "sum"
    words: tuple[int, ...] = (0, 1, 2, 3, 4)
    marks: str = "yield"

    @property
    def has_casts(self) -> bool:
        return any(op.kind == "cast" for stage in self.stages for op in stage.ops)


# The model.


@jax.custom_vjp
def halved_gradient(x):
    return x


halved_gradient.defvjp(lambda x: (x, None), lambda residual, g: (0.5 * g,))

POLICIES = (
    None,
    jax.checkpoint_policies.dots_saveable,
    jax.checkpoint_policies.everything_saveable,
    jax.checkpoint_policies.nothing_saveable,
)


def fit_width(value: Any, width: int) -> Any:
    """The value truncated or padded to a width."""
    if value.shape[-1] >= width:
        return value[..., :width]
    return jnp.concatenate([value, value[..., : width - value.shape[-1]]], axis=-1)


class Model:
    """Runs a recipe on one microbatch. `weights(group, name, shape)` gives a parameter."""

    def __init__(self, recipe: Recipe, weights: Callable[[str, str, tuple[int, ...]], Any]) -> None:
        self.recipe, self.weights = recipe, weights

    def loss(self, microbatch: Any) -> tuple[Any, tuple[Any, ...]]:
        state: dict[str, Any] = {"values": [microbatch["x"]], "flags": [], "aux": [], "metrics": []}
        last = len(self.recipe.stages) - 1
        for number, stage in enumerate(self.recipe.stages):
            run = self._stage_function(stage, microbatch, marks=self.recipe.marks == "yield" and number < last)
            if stage.is_jitted:
                run = jax.jit(run)
            if self.recipe.marks == "task":
                run = task(run, name=f"part{number}")
            state = run(state)
        value = state["values"][-1]
        total = jnp.mean(jnp.square(value)) + sum(state["aux"])
        for flag in state["flags"][-1:]:
            total = total + 0.1 * jnp.mean(jnp.where(flag["mask"], 1.0, flag["number"].astype(jnp.float32)))
        return total, tuple(state["metrics"])

    def _stage_function(self, stage: Stage, microbatch: Any, *, marks: bool) -> Callable[[Any], Any]:
        def run(state: Any) -> Any:
            state = {name: list(values) for name, values in state.items()}
            values = state["values"]
            on_chain = [False] * (len(values) - 1) + [True]
            for op in stage.ops:
                made = self._apply(op, state, microbatch)
                if made is not None:
                    used = [on_chain[-1 - op.source % len(values)]]
                    if op.kind in ("add", "multiply", "join"):
                        used.append(on_chain[-1 - op.other % len(values)])
                    on_chain.append(any(used) and op.kind not in ("data", "embed"))
                    values.append(made)
            if not on_chain[-1]:
                start = next(value for value, chained in zip(values, on_chain, strict=True) if chained)
                values.append(values[-1] + jnp.mean(start))
            if marks:
                self._mark(stage, state)
            return state

        return run

    def _mark(self, stage: Stage, state: dict[str, list[Any]]) -> None:
        values = state["values"]
        chosen = sorted({len(values) - 1, *(index % len(values) for index in stage.carried)})
        carried = [values[index] for index in chosen]
        if stage.carries_flags and state["flags"]:
            *carried, state["flags"] = pipeline_yield(*carried, state["flags"])
        elif len(carried) == 1:
            carried = [pipeline_yield(carried[0], name="only")]
        else:
            carried = list(pipeline_yield(*carried))
        for index, value in zip(chosen, carried, strict=True):
            values[index] = value

    def _weight(self, op: Op, rows: int, columns: int) -> Any:
        return self.weights("params", f"w{op.pool}_{rows}x{columns}", (rows, columns))

    def _apply(self, op: Op, state: dict[str, list[Any]], microbatch: Any) -> Any:
        values = state["values"]
        x = values[-1 - op.source % len(values)]
        other = values[-1 - op.other % len(values)]
        return getattr(self, f"_{op.kind}")(op, x, other, state, microbatch)

    def _dense(self, op, x, other, state, microbatch):
        return jnp.tanh(x @ self._weight(op, x.shape[-1], op.width))

    def _linear(self, op, x, other, state, microbatch):
        return x @ self._weight(op, x.shape[-1], op.width)

    def _transposed(self, op, x, other, state, microbatch):
        return x @ self._weight(op, op.width, x.shape[-1]).T

    def _cast(self, op, x, other, state, microbatch):
        weight = self._weight(op, x.shape[-1], op.width).astype(jnp.bfloat16)
        return jnp.tanh((x.astype(jnp.bfloat16) @ weight).astype(jnp.float32))

    def _frozen(self, op, x, other, state, microbatch):
        name = f"w{op.pool}_{x.shape[-1]}x{op.width}"
        return jnp.sin(x @ self.weights("frozen", name, (x.shape[-1], op.width)))

    def _stopped(self, op, x, other, state, microbatch):
        return jnp.sin(x @ lax.stop_gradient(self._weight(op, x.shape[-1], op.width)))

    def _act(self, op, x, other, state, microbatch):
        return (jnp.tanh, jax.nn.gelu, jax.nn.silu)[op.pool % 3](x)

    def _norm(self, op, x, other, state, microbatch):
        scale = self.weights("params", f"scale{op.pool}_{x.shape[-1]}", (x.shape[-1],))
        return scale * x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 0.1)

    def _add(self, op, x, other, state, microbatch):
        return x + fit_width(other, x.shape[-1])

    def _multiply(self, op, x, other, state, microbatch):
        return jnp.tanh(x * fit_width(other, x.shape[-1]))

    def _join(self, op, x, other, state, microbatch):
        rows = max(x.shape[0], other.shape[0])
        both = [jnp.broadcast_to(value, (rows, value.shape[-1])) for value in (x, other)]
        return fit_width(jnp.concatenate(both, axis=-1), op.width)

    def _mean(self, op, x, other, state, microbatch):
        return jnp.mean(x, axis=0, keepdims=True)

    def _data(self, op, x, other, state, microbatch):
        return microbatch["x"] * 0.5

    def _embed(self, op, x, other, state, microbatch):
        return self.weights("params", f"table{op.pool}", (5, 3))[microbatch["tokens"]]

    def _dropout(self, op, x, other, state, microbatch):
        key = microbatch["key"] if op.pool % 2 else jax.random.fold_in(jax.random.key(7), microbatch["index"])
        kept = jax.random.bernoulli(jax.random.fold_in(key, op.width), 0.7, x.shape)
        return jnp.where(kept, x / 0.7, 0.0)

    def _remat(self, op, x, other, state, microbatch):
        def block(weight, value):
            return jnp.tanh(jnp.tanh(value @ weight) @ weight.T)

        return jax.checkpoint(block, policy=POLICIES[op.pool % 4])(self._weight(op, x.shape[-1], op.width), x)

    def _scan(self, op, x, other, state, microbatch):
        weight = self._weight(op, x.shape[-1], x.shape[-1])
        return lax.scan(lambda carry, _: (jnp.tanh(carry @ weight), None), x, length=2)[0]

    def _cond(self, op, x, other, state, microbatch):
        weight = self._weight(op, x.shape[-1], x.shape[-1])
        return lax.cond(jnp.mean(x) > 0, lambda v: jnp.tanh(v @ weight), lambda v: v * 0.5, x)

    def _custom(self, op, x, other, state, microbatch):
        return halved_gradient(x)

    def _flag(self, op, x, other, state, microbatch):
        flag = {
            "mask": x > 0,
            "number": jnp.argmax(x, axis=-1, keepdims=True).astype(jnp.int32),
            "key": jax.random.fold_in(microbatch["key"], op.pool),
        }
        state["flags"].append(flag)

    def _masked(self, op, x, other, state, microbatch):
        if not state["flags"]:
            return x * 0.5
        flag = state["flags"][-1 - op.pool % len(state["flags"])]
        mask = flag["mask"].any(axis=-1, keepdims=True)
        noise = 0.1 * jax.random.normal(flag["key"], x.shape)
        return jnp.where(mask, x, x * 0.25) + noise + flag["number"].astype(x.dtype)

    def _aux(self, op, x, other, state, microbatch):
        state["aux"].append(0.3 * jnp.mean(jnp.square(x)))

    def _metric(self, op, x, other, state, microbatch):
        state["metrics"].append(jnp.max(x) if op.pool % 2 else jnp.mean(x, axis=0))

    def _count(self, op, x, other, state, microbatch):
        state["metrics"].append(jnp.sum(x > 0) if op.pool % 2 else jnp.any(x > 0.5))

    def _odd_metric(self, op, x, other, state, microbatch):
        weight = self._weight(op, 2, 3)
        odd = (microbatch["key"], jnp.float32(2.0), jnp.sum(weight), microbatch["x"], weight, microbatch["tokens"])
        state["metrics"].append(odd[(op.pool + 2 * op.width) % len(odd)])


# The step.


def make_optimizer(name: str) -> optax.GradientTransformation:
    if name == "adamw":
        rate = optax.cosine_decay_schedule(0.1, 10)
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, eps=0.1))
    return optax.sgd(0.1, momentum=0.9 if name == "momentum" else None)


def make_step(recipe: Recipe) -> Callable[..., Any]:
    """`step(accumulate, state, batch)`, as the oracle wants it."""
    optimizer = make_optimizer(recipe.optimizer)

    def step(accumulate, state, batch):
        def loss(params, microbatch):
            groups = {"params": params, "frozen": state["frozen"]}
            return Model(recipe, lambda group, name, shape: groups[group][name]).loss(microbatch)

        def microbatch_grads(microbatch):
            (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], microbatch)
            return grads, value, *metrics

        words = (recipe.grads, "stack", *metric_words(recipe, state, batch))
        grads, *outputs = accumulate(microbatch_grads, words)(batch)
        updates, optimizer_state = optimizer.update(grads, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": optimizer_state, "frozen": state["frozen"]}, *outputs

    return step


def metric_words(recipe: Recipe, state: Any, batch: Any) -> list[str]:
    """A reduction for each metric, among those that its type allows."""

    def metrics(state, batch):
        groups = {"params": state["params"], "frozen": state["frozen"]}
        model = Model(recipe, lambda group, name, shape: groups[group][name])
        return model.loss(jax.tree.map(lambda leaf: leaf[0], batch))[1]

    words = []
    for position, metric in enumerate(jax.eval_shape(metrics, state, batch)):
        allowed = ALL_WORDS
        if metric.dtype == jnp.bool_:
            allowed = ("max", "stack", "last")
        elif jnp.issubdtype(metric.dtype, jax.dtypes.prng_key):
            allowed = ("stack", "last")
        words.append(allowed[recipe.words[position % len(recipe.words)] % len(allowed)])
    return words


def make_batch(num_microbatches: int) -> dict[str, Any]:
    rng = np.random.default_rng(num_microbatches)
    return {
        "x": jnp.asarray(rng.normal(size=(num_microbatches, 2, 3)), jnp.float32),
        "tokens": jnp.asarray(rng.integers(0, 5, size=(num_microbatches, 2)), jnp.int32),
        "index": jnp.arange(num_microbatches, dtype=jnp.int32),
        "key": jax.random.split(jax.random.key(3), num_microbatches),
    }


def make_arguments(recipe: Recipe, num_microbatches: int) -> tuple[Any, Any]:
    """State and batch for the step of a recipe."""
    batch = make_batch(num_microbatches)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {"params": {"unused": (2,)}, "frozen": {}}

    def collect(group, name, shape):
        shapes[group][name] = shape
        return jnp.zeros(shape)

    jax.eval_shape(Model(recipe, collect).loss, jax.tree.map(lambda leaf: leaf[0], batch))
    rng = np.random.default_rng(0)
    weights = {
        group: {name: jnp.asarray(rng.normal(size=shape) * 0.7, jnp.float32) for name, shape in sorted(named.items())}
        for group, named in shapes.items()
    }
    return {**weights, "optimizer": make_optimizer(recipe.optimizer).init(weights["params"])}, batch


# Strategies.

MAKING = (
    *("dense", "dense", "dense", "linear", "transposed", "frozen", "stopped", "act", "norm", "add", "multiply"),
    *("join", "mean", "data", "embed", "dropout", "remat", "scan", "cond", "custom", "masked"),
)
NOTING = ("flag", "aux", "metric", "count", "odd_metric")

ops = st.builds(
    Op,
    st.sampled_from((*MAKING, *NOTING)),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 3),
    st.sampled_from(WIDTHS),
)
first_ops = st.builds(Op, st.sampled_from(MAKING[:9]), st.just(0), st.integers(0, 5), st.integers(0, 3))


# Stages that share few weights, transposed and cast, and do little else.
sharing_ops = st.builds(
    Op,
    st.sampled_from(("cast", "cast", "transposed", "remat", "add")),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 1),
    st.sampled_from(WIDTHS),
)
shared_stages = st.builds(Stage, st.lists(sharing_ops, min_size=1, max_size=3).map(tuple))


@st.composite
def stages(draw) -> Stage:
    return Stage(
        ops=(draw(first_ops), *draw(st.lists(ops, max_size=4))),
        carried=tuple(draw(st.lists(st.integers(0, 7), max_size=3))),
        carries_flags=draw(st.booleans()),
        is_jitted=draw(st.booleans()),
    )


@st.composite
def recipes(draw, num_stages: int, stages: st.SearchStrategy[Stage] = stages()) -> Recipe:  # noqa: B008
    return Recipe(
        stages=tuple(draw(stages) for _ in range(num_stages)),
        optimizer=draw(st.sampled_from(("sgd", "momentum", "adamw"))),
        grads=draw(st.sampled_from(("sum", "mean"))),
        words=tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))),
        marks=draw(st.sampled_from(("yield", "yield", "task"))),
    )


def custom_schedule(num_stages: int, num_actors: int, num_microbatches: int, seed: int) -> Custom:
    """Any order that can run: stages anywhere, tasks in a random topological order, some backwards split."""
    rng = random.Random(seed)
    homes = list(range(num_actors)) + [rng.randrange(num_actors) for _ in range(num_stages - num_actors)]
    rng.shuffle(homes)
    waiting = []
    for stage in range(num_stages):
        for microbatch in range(num_microbatches):
            phases = rng.choice(("FB", "FIW"))
            waiting += [Task(stage=stage, phase=Phase(phase), microbatch=microbatch) for phase in phases]
    rows: list[list[Task]] = [[] for _ in range(num_actors)]
    made: set[Any] = set()
    while waiting:
        ready = [task for task in waiting if made.issuperset(needs_of(task, num_stages=num_stages))]
        chosen = rng.choice(ready)
        waiting.remove(chosen)
        rows[homes[chosen.stage]].append(chosen)
        made.add(made_by(chosen))
    return Custom(rows)


KINDS = (
    *(GPipe, OneFOneB, EagerOneFOneB, Interleaved, LoopedBFS, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleV, DualPipeV),
    Custom,
)


@st.composite
def schedules(draw, num_microbatches: int, num_actors: st.SearchStrategy[int] = st.integers(1, 3)) -> Schedule:  # noqa: B008
    kind = draw(st.sampled_from(KINDS))
    num_actors = draw(num_actors)
    if kind is Custom:
        num_stages = num_actors + draw(st.integers(0, 2))
        return custom_schedule(num_stages, num_actors, num_microbatches, draw(st.integers(0, 1 << 30)))
    if kind in (Interleaved, LoopedBFS):
        return kind(num_actors * draw(st.integers(1, 2)), num_actors)
    return kind(2 * num_actors if kind in (ZeroBubbleV, DualPipeV) else num_actors)


microbatch_counts = st.integers(1, 7)
