"""Penzai's LLaMA, as a list of blocks and as a scan over them: found by the labels of its parameters."""

import jax
import jax.numpy as jnp
import pytest

from tests.field.pipelined import check_model, next_token_loss, random_tokens

pytest.importorskip("penzai")
pytestmark = pytest.mark.filterwarnings("ignore")

VOCAB = 32


@pytest.mark.parametrize(("is_stacked", "where"), [(False, "block_*"), (True, "blocks[*]")])
def test_llama(is_stacked, where):
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common

    config = llamalike_common.LlamalikeTransformerConfig(
        num_kv_heads=2,
        query_head_multiplier=1,
        embedding_dim=16,
        projection_dim=8,
        mlp_hidden_dim=32,
        num_decoder_blocks=3,
        vocab_size=VOCAB,
        mlp_variant="swiglu",
        tie_embedder_and_logits=False,
        use_layer_stack=is_stacked,
    )
    unbound, variables = pz.unbind_params(
        llamalike_common.build_llamalike_transformer(config, init_base_rng=jax.random.key(0))
    )
    params = {variable.label: variable.freeze() for variable in variables}

    def loss(params, tokens):
        model = pz.bind_variables(unbound, list(params.values()))
        positions = pz.nx.wrap(jnp.arange(tokens.shape[-1])).tag("seq")
        logits = model(pz.nx.wrap(tokens).tag("batch", "seq"), token_positions=positions)
        return next_token_loss(logits.unwrap("batch", "seq", "vocabulary"), tokens)

    check_model(loss, params, random_tokens(VOCAB), where, num_stages=3)
