"""Parts of the models once more, in numpy and float64, head by head and position by position."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from tests.models.counts import param_shapes


def random_params(module, config, seed=0):
    """Random parameters of the shapes of `init`, so that biases and norms count too."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(size=leaf.shape, scale=0.3), leaf.dtype), param_shapes(module, config)
    )


def random_tokens(config, batch_size=3, seed=0):
    """Tokens, and the tokens that follow them."""
    tokens = np.random.default_rng(seed).integers(0, config.vocab_size, (batch_size, config.sequence_length + 1))
    return {"tokens": jnp.asarray(tokens[:, :-1]), "targets": jnp.asarray(tokens[:, 1:])}


def to_float64(params):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def layer_norm(params, x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * params["scale"] + params[
        "bias"
    ]


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attend(query, key, value, *, causal):
    """One head of one sequence, position by position."""
    mixed = []
    for position in range(len(query)):
        seen = position + 1 if causal else len(key)
        scores = key[:seen] @ query[position] / math.sqrt(query.shape[-1])
        mixed.append(softmax(scores) @ value[:seen])
    return np.stack(mixed)


def cross_entropies(logits, targets):
    log_probs = logits - logits.max(-1, keepdims=True)
    log_probs -= np.log(np.exp(log_probs).sum(-1, keepdims=True))
    return -np.take_along_axis(log_probs, np.asarray(targets)[..., None], -1)[..., 0]


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
