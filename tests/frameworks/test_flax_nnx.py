"""The transformer in Flax NNX: `nnx.split` separates module and arrays, as `jax.jit` needs too."""

import jax
import jax.numpy as jnp
from flax import nnx

import jaxquard as jq
from tests.frameworks.transformer import HEADS, LENGTH, VOCAB, WIDTH, check_two_steps, cross_entropy


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
