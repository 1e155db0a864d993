"""A training step of any model in plain JAX: gradients, then SGD or Adam (Kingma and Ba 2015, algorithm 1).

A state is a dict of plain arrays: `params`, `step` (how many were taken), with Adam `m` and `v`,
the means of the gradients and of their squares, and with dropout or other randomness `key`, the
data of a PRNG key, from which each step draws its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxquard.models.layers.parts import Microbatch, Params

State = dict[str, Any]
Metrics = dict[str, Array]

OPTIMIZERS = ("sgd", "adam")


class ModelModule(Protocol):
    """The functions that a model's module offers: `gpt`, `bert`, `llama`, `mixtral` or `moe`."""

    SIZES: dict[str, Any]

    def init(self, key: PRNGKeyArray, config: Any) -> Params: ...

    def loss(
        self, params: Params, microbatch: Microbatch, config: Any, *, key: PRNGKeyArray | None = None
    ) -> Array: ...

    def synthetic_batch(
        self, key: PRNGKeyArray, config: Any, *, num_microbatches: int, microbatch_size: int
    ) -> Microbatch: ...

    def num_parameters(self, config: Any) -> int: ...

    def flops_per_token(self, config: Any) -> int: ...


class TrainingStep(NamedTuple):
    """A step, what makes its first state from a PRNG key, and a batch to call it on, or its shapes."""

    train_step: Callable[[State, Microbatch], tuple[State, Metrics]]
    init_state: Callable[[PRNGKeyArray], State]
    batch: Microbatch


def training_step(
    model: ModelModule,
    config: Any,
    *,
    batch_size: int = 8,
    learning_rate: float = 1e-3,
    optimizer: str = "adam",
    only_shapes: bool = False,
) -> TrainingStep:
    """Makes a training step: `state, metrics = train_step(state, batch)`, where metrics has the `loss`.

    For shapes alone, as of a model that does not fit here: `jax.eval_shape(init_state, key)`.

    Args:
        model: the module, such as `jaxquard.models.gpt`.
        config: the shape of the model.
        batch_size: sequences in the example batch; the step itself takes any number.
        learning_rate: of either optimizer.
        optimizer: "sgd" or "adam".
        only_shapes: whether the batch is shapes alone, which runs nothing: enough to trace the step.

    Example:
        >>> model = jq.models.zoo.find_model("moe-tiny")
        >>> made = jq.models.zoo.training_step(model.module, model.config, batch_size=4, only_shapes=True)
        >>> state = jax.eval_shape(made.init_state, jax.random.key(0))
        >>> _, metrics = jax.eval_shape(made.train_step, state, made.batch)
        >>> list(metrics)
        ['loss']
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer={optimizer!r} is not known. Choose one of {', '.join(OPTIMIZERS)}.")
    random = bool(config.dropout_rate) or getattr(config, "random_second_expert", False)

    def init_state(key: PRNGKeyArray) -> State:
        params_key, step_key = jax.random.split(key)
        params = model.init(params_key, config)
        state: State = {"params": params, "step": jnp.zeros((), jnp.int32)}
        if optimizer == "adam":
            state |= {"m": jax.tree.map(jnp.zeros_like, params), "v": jax.tree.map(jnp.zeros_like, params)}
        return state | {"key": jax.random.key_data(step_key)} if random else state

    def train_step(state: State, batch: Microbatch) -> tuple[State, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["step"]) if random else None
        loss, grads = jax.value_and_grad(model.loss)(state["params"], batch, config, key=key)
        state = state | {"step": state["step"] + 1}
        update = _adam if optimizer == "adam" else _sgd
        return update(state, grads, learning_rate), {"loss": loss}

    def make_batch() -> Microbatch:
        batches = model.synthetic_batch(jax.random.key(0), config, num_microbatches=1, microbatch_size=batch_size)
        return jax.tree.map(lambda leaf: leaf[0], batches)

    return TrainingStep(train_step, init_state, jax.eval_shape(make_batch) if only_shapes else make_batch())


def _sgd(state: State, grads: Params, learning_rate: float) -> State:
    return state | {"params": jax.tree.map(lambda param, grad: param - learning_rate * grad, state["params"], grads)}


def _adam(
    state: State,
    grads: Params,
    learning_rate: float,
    decay_1: float = 0.9,
    decay_2: float = 0.999,
    epsilon: float = 1e-8,
) -> State:
    m = jax.tree.map(lambda mean, grad: decay_1 * mean + (1 - decay_1) * grad, state["m"], grads)
    v = jax.tree.map(lambda mean, grad: decay_2 * mean + (1 - decay_2) * jnp.square(grad), state["v"], grads)
    step = state["step"].astype(jnp.float32)
    rate_1, rate_2 = 1 / (1 - decay_1**step), 1 / (1 - decay_2**step)
    params = jax.tree.map(
        lambda param, m, v: param - learning_rate * (m * rate_1) / (jnp.sqrt(v * rate_2) + epsilon),
        state["params"],
        m,
        v,
    )
    return state | {"params": params, "m": m, "v": v}
