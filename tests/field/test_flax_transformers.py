"""Flax models of Hugging Face's transformers: found by the scopes of Flax Linen."""

import jax.numpy as jnp
import pytest

from tests.field.pipelined import check_model, next_token_loss, random_tokens

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.modeling_flax_utils")
pytestmark = pytest.mark.filterwarnings("ignore")

VOCAB = 32


def make(model_class, config, **options):
    model = model_class(config, input_shape=(1, 6), seed=0, **options)
    return model, model.params


def llama(*, width=16, num_heads=2, num_layers=3, length=6):
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        max_position_embeddings=max(16, length),
    )
    model, params = make(transformers.FlaxLlamaForCausalLM, config)

    def loss(params, tokens):
        return next_token_loss(model(tokens, params=params, train=False).logits, tokens)

    return loss, params


def test_llama():
    check_model(*llama(), random_tokens(VOCAB), "layers.*", num_stages=3)


def test_gpt2():
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    model, params = make(transformers.FlaxGPT2LMHeadModel, config)

    def loss(params, tokens):
        return next_token_loss(model(tokens, params=params, train=False).logits, tokens)

    check_model(loss, params, random_tokens(VOCAB), "h.0", num_stages=2)


def test_bart():
    """An encoder and a decoder: boundaries in both."""
    config = transformers.BartConfig(
        vocab_size=VOCAB,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=16,
    )
    model, params = make(transformers.FlaxBartForConditionalGeneration, config)

    def loss(params, tokens):
        logits = model(tokens, decoder_input_ids=jnp.roll(tokens, 1, -1), params=params, train=False).logits
        return next_token_loss(logits, tokens)

    where = ["encoder.layers.0", "decoder.layers.0"]
    # Biases of keys in attention have gradients of 0, up to rounding.
    check_model(loss, params, random_tokens(VOCAB), where, num_stages=3, absolute=1e-10)


def t5():
    """An encoder and a decoder, whose layers share the biases of relative positions of the first of each."""
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        decoder_start_token_id=0,
    )
    model, params = make(transformers.FlaxT5ForConditionalGeneration, config)

    def loss(params, tokens):
        logits = model(tokens, decoder_input_ids=jnp.roll(tokens, 1, -1), params=params, train=False).logits
        return next_token_loss(logits, tokens)

    return loss, params


@pytest.mark.usefixtures("clip_with_old_names")
def test_t5():
    where = ["encoder.block.0", "encoder.block.1", "decoder.block.0"]
    check_model(*t5(), random_tokens(VOCAB), where, num_stages=4)
