"""The transformer in Flax NNX: `nnx.split` separates module and arrays, as `jax.jit` needs too."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxquard as jq
from tests.frameworks.transformer import HEADS, LENGTH, VOCAB, WIDTH, check_two_steps, cross_entropy
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import plan, with_schedule


class Block(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norm_1, self.norm_2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, hidden):
        mask = nnx.make_causal_mask(hidden[..., 0])
        hidden = hidden + self.attention(self.norm_1(hidden), mask=mask)
        return hidden + self.down(nnx.gelu(self.up(self.norm_2(hidden))))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.embedding = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.positions = nnx.Param(0.1 * jax.random.normal(rngs.params(), (LENGTH, WIDTH)))
        self.first, self.second = Block(rngs), Block(rngs)
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def __call__(self, tokens):
        hidden = self.first(self.embedding(tokens) + self.positions[...])
        hidden = jq.pipeline_yield(hidden)
        return self.head(self.second(hidden))


def test_two_steps():
    graph, params, rest = nnx.split(Transformer(nnx.Rngs(0)), nnx.Param, ...)

    def loss_fn(params, microbatch):
        model = nnx.merge(graph, params, rest)
        return cross_entropy(model(microbatch["tokens"]), microbatch["targets"])

    state = check_two_steps(loss_fn, params, jq.schedules.OneFOneB(2))
    kernels = [state["params"][name]["up"]["kernel"].get_value() for name in ("first", "second")]
    assert [kernel.placement[0].actors for kernel in kernels] == [(0,), (1,)]
    assert jnp.shape(state["params"]["head"]["bias"].get_value()) == (VOCAB,)


class RouterBias(nnx.Variable):
    """Moves tokens from experts with many of them to others, without a loss of its own."""


class Experts(nnx.Module):
    """A layer with dropout whose tokens go to one expert each."""

    def __init__(self, rngs):
        self.router = nnx.Linear(4, 3, rngs=rngs)
        self.kernels = nnx.Param(jax.random.normal(rngs.params(), (3, 4, 4)))
        self.bias = RouterBias(jnp.zeros(3))
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        logits = self.router(x)
        chosen = jax.nn.one_hot(jnp.argmax(logits + self.bias[...], -1), 3)
        self.bias[...] += 0.1 * jnp.sign(1 / 3 - jnp.mean(chosen, 0))
        gates = chosen * jax.nn.softmax(logits)
        return self.dropout(jnp.tanh(jnp.einsum("bd,edf,be->bf", x, self.kernels[...], gates)))


class RoutedModel(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = Experts(rngs), Experts(rngs)

    def __call__(self, x):
        return self.second(jq.pipeline_yield(self.first(x)))


def test_random_counts_and_router_biases_are_carried():
    graph, params, first = nnx.split(RoutedModel(nnx.Rngs(0)), nnx.Param, ...)

    def loss_fn(params, rest, x):
        model = nnx.merge(graph, params, rest, copy=True)
        loss = jnp.mean(jnp.square(model(x) - 1))
        return loss, nnx.split(model, nnx.Param, ...)[2]

    def train_step(accumulate, state, batch):
        def microbatch_grads(rest, x):
            (loss, rest), grads = jax.value_and_grad(loss_fn, has_aux=True)(state["params"], rest, x)
            return rest, (grads, loss)

        rest, (grads, losses) = accumulate(microbatch_grads, ("mean", "stack"), carry=state["rest"])(batch)
        return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads), "rest": rest}, losses

    batch = np.random.default_rng(0).normal(size=(2, 8, 4)).astype(np.float32)
    state = {"params": params, "rest": first}
    expected = run_oracle(train_step, state, batch)
    planned = plan(with_schedule(train_step, jq.schedules.OneFOneB(2)), state, batch, num_actors=2)
    assert_close(planned.run(state, batch), expected)
    assert jnp.any(expected[0]["rest"]["first"]["bias"].get_value() != 0)
    held = [[str(actor.types[item.slot]) for item in actor.inputs] for actor in planned.program.actors]
    assert [types.count("float32[3]") for types in held] == [2, 2], "the bias of a router's logits, and of its choice"
