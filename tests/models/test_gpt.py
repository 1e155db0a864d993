import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.models import gpt
from tests.models.check_dropout import check_dropout

TINY = gpt.GptConfig(vocab_size=31, num_layers=2, num_heads=2, model_dim=16, sequence_length=8, dtype=jnp.float32)
TIED = dataclasses.replace(TINY, tied_embeddings=True)
DROPOUT = dataclasses.replace(TINY, dropout_rate=0.2)
ONE_LAYER = dataclasses.replace(TINY, num_layers=1)

# Compiled once for all tests that use the same configuration.
STATIC = ("config", "num_stages", "remat")
loss = jax.jit(gpt.loss, static_argnames=STATIC)
value_and_grad = jax.jit(jax.value_and_grad(gpt.loss), static_argnames=STATIC)
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)


def make(config):
    """Random parameters of the shapes of `init`, so that biases and norms count too; one microbatch."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(functools.partial(gpt.init, config=config), jax.random.key(0))
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape, scale=0.3).astype(leaf.dtype), shapes)
    tokens = random.integers(0, config.vocab_size, (3, config.sequence_length + 1))
    return jax.tree.map(jnp.asarray, (params, {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}))


def numpy_norm(params, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * params["scale"] + params["bias"]


def numpy_attention(params, x, num_heads):
    batch, length, dim = x.shape
    head_dim = dim // num_heads
    out = np.zeros_like(x)
    for b in range(batch):
        for head in range(num_heads):
            query, key, value = (
                x[b] @ params["qkv"]["kernel"][:, n, head] + params["qkv"]["bias"][n, head] for n in range(3)
            )
            for position in range(length):
                scores = key[: position + 1] @ query[position] / math.sqrt(head_dim)
                weights = np.exp(scores - scores.max())
                mixed = (weights / weights.sum()) @ value[: position + 1]
                out[b, position] += mixed @ params["out"]["kernel"][head]
    return out + params["out"]["bias"]


def numpy_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def numpy_loss(params, microbatch, config):
    """The model once more, in float64, head by head and position by position."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    tokens, targets = np.asarray(microbatch["tokens"]), np.asarray(microbatch["targets"])
    x = params["embedding"]["tokens"][tokens] + params["embedding"]["positions"]
    for layer in params["layers"]:
        x = x + numpy_attention(layer["attention"], numpy_norm(layer["norm_1"], x), config.num_heads)
        up, down = layer["mlp"]["up"], layer["mlp"]["down"]
        y = numpy_gelu(numpy_norm(layer["norm_2"], x) @ up["kernel"] + up["bias"])
        x = x + y @ down["kernel"] + down["bias"]
    head = params["embedding"]["tokens"] if config.tied_embeddings else params["head"]
    logits = numpy_norm(params["final_norm"], x) @ head.T
    logits -= logits.max(-1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.mean(np.take_along_axis(log_probs, targets[..., None], -1))


@pytest.mark.parametrize("config", [TINY, TIED], ids=["untied", "tied"])
def test_loss_against_numpy(config):
    params, microbatch = make(config)
    assert ("head" in params) != config.tied_embeddings
    np.testing.assert_allclose(loss(params, microbatch, config), numpy_loss(params, microbatch, config), rtol=2e-6)


def test_products_in_bfloat16_parameters_and_loss_in_float32():
    config = dataclasses.replace(ONE_LAYER, dtype=jnp.bfloat16)
    params, microbatch = make(config)
    value, grads = value_and_grad(params, microbatch, config)
    assert value.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(value, numpy_loss(params, microbatch, config), rtol=3e-2)
    jaxpr = jax.make_jaxpr(gpt.loss, static_argnums=2)(params, microbatch, config)
    products = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    assert len(products) == 6 * config.num_layers + 1
    assert {invar.aval.dtype for eqn in products for invar in eqn.invars} == {jnp.dtype(jnp.bfloat16)}


def test_large_logits_do_not_overflow():
    params, microbatch = make(TINY)
    params["head"] = params["head"] * 1e4
    np.testing.assert_allclose(loss(params, microbatch, TINY), numpy_loss(params, microbatch, TINY), rtol=2e-5)


def test_scanned_equals_listed():
    params, microbatch = make(TINY)

    @jax.jit
    @jax.value_and_grad
    def scanned(params):
        return gpt.loss_scanned(gpt.stack_layers(params), microbatch, TINY)

    listed_loss, listed_grads = value_and_grad(params, microbatch, TINY)
    scanned_loss, scanned_grads = scanned(params)
    np.testing.assert_allclose(scanned_loss, listed_loss, rtol=1e-6)
    jax.tree.map(assert_close, scanned_grads, listed_grads)


def test_scanned_drops_what_listed_drops():
    params, microbatch = make(DROPOUT)
    key = jax.random.key(7)

    @jax.jit
    def scanned(params):
        return gpt.loss_scanned(gpt.stack_layers(params), microbatch, DROPOUT, key=key)

    listed = loss(params, microbatch, DROPOUT, key=key)
    np.testing.assert_allclose(scanned(params), listed, rtol=1e-6)


def test_scan_is_passed_in():
    params, microbatch = make(TINY)
    lengths = []

    def loop(body, carry, stacked):
        lengths.append(jax.tree.leaves(stacked)[0].shape[0])
        for layer in range(lengths[-1]):
            carry, _ = body(carry, jax.tree.map(lambda leaf, layer=layer: leaf[layer], stacked))
        return carry, None

    @jax.jit
    def scanned(params):
        return gpt.loss_scanned(gpt.stack_layers(params), microbatch, TINY, scan=loop)

    np.testing.assert_allclose(scanned(params), loss(params, microbatch, TINY), rtol=1e-6)
    assert lengths == [TINY.num_layers]


@pytest.mark.parametrize("remat", [True, jax.checkpoint_policies.checkpoint_dots], ids=["whole layers", "policy"])
def test_remat_changes_no_gradient(remat):
    params, microbatch = make(ONE_LAYER)
    rematted = functools.partial(gpt.loss, config=ONE_LAYER, remat=remat)
    jaxpr = jax.make_jaxpr(rematted)(params, microbatch)
    assert sum(eqn.primitive.name == "remat2" for eqn in jaxpr.eqns) == 1
    _, plain = value_and_grad(params, microbatch, ONE_LAYER)
    jax.tree.map(assert_close, jax.jit(jax.grad(rematted))(params, microbatch), plain)


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "layers"),
    [(4, 1, [4]), (4, 2, [2, 2]), (5, 3, [2, 2, 1]), (10, 4, [3, 3, 2, 2]), (3, 3, [1, 1, 1])],
)
def test_marks_stand_between_stages(num_layers, num_stages, layers):
    config = dataclasses.replace(TINY, num_layers=num_layers)
    params = jax.eval_shape(functools.partial(gpt.init, config=config), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((3, 8), jnp.int32)
    seen = []

    def mark(hidden):
        assert hidden.shape == (3, 8, 16)
        seen.append("mark")
        return hidden

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.nn, "gelu", lambda values: seen.append("layer") or values)
        marked = functools.partial(gpt.loss, config=config, mark=mark, num_stages=num_stages)
        jax.eval_shape(marked, params, {"tokens": tokens, "targets": tokens})
    assert [stage.split().count("layer") for stage in " ".join(seen).split("mark")] == layers


@pytest.mark.parametrize("num_stages", [0, 3])
def test_a_stage_without_a_layer_is_refused(num_stages):
    params, microbatch = make(TINY)
    with pytest.raises(ValueError, match=r"the model has 2\. Choose 1 to 2 stages"):
        gpt.loss(params, microbatch, TINY, num_stages=num_stages)


def test_heads_must_divide_the_model():
    with pytest.raises(ValueError, match="model_dim=16 is not a multiple of num_heads=3"):
        dataclasses.replace(TINY, num_heads=3)


def test_dropout_needs_a_key_and_differs_by_key():
    check_dropout(loss, *make(DROPOUT), plain=TINY, dropout=DROPOUT)


def test_synthetic_batch_can_be_learned():
    batch = gpt.synthetic_batch(jax.random.key(0), TINY, num_microbatches=2, microbatch_size=3)
    tokens, targets = np.asarray(batch["tokens"]), np.asarray(batch["targets"])
    assert tokens.shape == targets.shape == (2, 3, 8)
    np.testing.assert_array_equal(tokens[..., 1:], targets[..., :-1])
    strides = (targets - tokens) % TINY.vocab_size
    assert (strides == strides[..., :1]).all()
    assert strides.min() >= 1
    assert strides.max() <= 4
