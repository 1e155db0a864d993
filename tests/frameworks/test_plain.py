"""A transformer in plain JAX: `jaxquard.models.gpt` with marks, as a list of layers and as a scan."""

import functools

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from jaxquard.models import gpt
from tests.frameworks.transformer import HEADS, LENGTH, VOCAB, WIDTH, check_two_steps

CONFIG = gpt.GptConfig(
    vocab_size=VOCAB,
    num_layers=2,
    num_heads=HEADS,
    model_dim=WIDTH,
    sequence_length=LENGTH,
    dtype=jnp.float32,
    tied_embeddings=True,
)
init = jax.jit(lambda key: gpt.init(key, CONFIG))


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
def test_layers_in_a_list(remat):
    def loss_fn(params, microbatch):
        return gpt.loss(params, microbatch, CONFIG, mark=jq.pipeline_yield, num_stages=2, remat=remat)

    schedule = jq.schedules.ZeroBubbleH1(2) if remat else jq.schedules.OneFOneB(2)
    state = check_two_steps(loss_fn, init(jax.random.key(0)), schedule)
    layers = state["params"]["layers"]
    assert [layer["mlp"]["up"]["kernel"].placement[0].actors for layer in layers] == [(0,), (1,)]
    assert state["params"]["embedding"]["tokens"].placement[0].actors == (0,)


@pytest.mark.slow
def test_layers_in_a_scan():
    def loss_fn(params, microbatch):
        scan = functools.partial(jq.pipeline_scan, num_stages=2)
        return gpt.loss_scanned(params, microbatch, CONFIG, scan=scan, remat=True)

    params = gpt.stack_layers(init(jax.random.key(0)))
    state = check_two_steps(loss_fn, params, jq.schedules.OneFOneB(2))
    placement = state["params"]["layers"]["mlp"]["up"]["kernel"].placement
    assert [(part.start, part.stop, part.actors) for part in placement] == [(0, 1, (0,)), (1, 2, (1,))]
