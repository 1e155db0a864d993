"""Models of Flax Linen, Flax NNX and Equinox without a mark in their code: `mark_layers` finds their layers."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxquard as jq
from jaxquard.errors import MarkError
from tests.frameworks.transformer import LENGTH, VOCAB, WIDTH, cross_entropy, expect, make_batch, train
from tests.pipeline.layers.test_mark_layers import marks_of
from tests.pipeline.oracle import assert_close

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Equinox, while it is imported.
    import equinox as eqx

HIDDEN = [f"float32[2,{LENGTH},{WIDTH}]"]
TOKENS = jnp.asarray(make_batch()["tokens"][0])


def check_numbers(where, loss_fn, params, num_stages=2):
    """Two steps of the marked loss on actors against a plain loop over the loss without marks."""
    marked = jq.mark_layers(loss_fn, where, num_stages=num_stages if "*" in where else None)
    state, losses = train(marked, params, jq.schedules.OneFOneB(num_stages))
    expected_params, expected_losses = expect(loss_fn, params)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert_close(jax.tree.map(jnp.asarray, jax.device_get(state["params"])), expected_params, absolute=1e-6)
    return state["params"]


# Flax Linen: scopes.


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, hidden):
        normed = nn.LayerNorm()(hidden)
        return hidden + nn.Dense(WIDTH, name="down")(nn.gelu(nn.Dense(2 * WIDTH, name="up")(normed)))


class ScannedBlock(nn.Module):
    @nn.compact
    def __call__(self, hidden, _):
        return LinenBlock(name="block")(hidden), None


class LinenModel(nn.Module):
    kind: str = "list"

    @nn.compact
    def __call__(self, tokens):
        hidden = nn.Embed(VOCAB, WIDTH)(tokens)
        if self.kind.startswith("scan"):
            layer = nn.remat(ScannedBlock, prevent_cse=False) if self.kind == "scan of remats" else ScannedBlock
            layers = nn.scan(layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
            hidden, _ = layers(name="blocks")(hidden, None)
        else:
            layer = {"list": LinenBlock, "remat": nn.remat(LinenBlock), "jit": nn.jit(LinenBlock)}[self.kind]
            for number in range(3):
                hidden = layer(name=f"block_{number}")(hidden)
        return nn.Dense(VOCAB, name="head")(hidden)


def linen(kind):
    model = LinenModel(kind=kind)
    return model, jax.eval_shape(model.init, jax.random.key(0), TOKENS)


@pytest.mark.parametrize("kind", ["list", "remat"])
def test_modules_of_linen(kind):
    model, params = linen(kind)
    for where in ("block_1", "LinenModel.block_1", "LinenModel/block_1"):
        found = marks_of(jq.mark_layers(model.apply, where), params, TOKENS)
        assert found == {"LinenModel.block_1": HIDDEN}
    assert list(marks_of(jq.mark_layers(model.apply, "block_*", num_stages=2), params, TOKENS)) == [
        "LinenModel.block_1"
    ]


@pytest.mark.parametrize("number", range(3))
def test_modules_of_linen_that_share_a_trace(number):
    """JAX traces equal layers once, under the name of the first: the parameters distinguish them."""
    model, params = linen("jit")
    jaxpr = jax.make_jaxpr(jq.mark_layers(model.apply, f"block_{number}"))(params, TOKENS)
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names[: names.index("pipeline_yield")].count("dot_general") == 2 * (number + 1)


@pytest.mark.parametrize("kind", ["scan", "scan of remats"])
def test_scans_of_linen(kind):
    model, params = linen(kind)
    for where in ("blocks[1]", "blocks.1", "params.blocks.1"):
        assert list(marks_of(jq.mark_layers(model.apply, where), params, TOKENS).values()) == [HIDDEN]
    assert len(marks_of(jq.mark_layers(model.apply, "blocks.*"), params, TOKENS)) == 3
    assert list(marks_of(jq.mark_layers(model.apply, "blocks"), params, TOKENS)) == ["LinenModel.blocks"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "where"),
    [("scan of remats", "blocks[0]"), ("scan", "blocks[1]"), ("list", "block_1"), ("remat", "block_1")],
)
def test_numbers_of_linen(kind, where):
    model = LinenModel(kind=kind)

    def loss_fn(params, microbatch):
        return cross_entropy(model.apply(params, microbatch["tokens"]), microbatch["targets"])

    check_numbers(where, loss_fn, jax.jit(model.init)(jax.random.key(0), TOKENS))


def test_a_part_of_a_checkpoint_or_of_a_scan():
    model, params = linen("remat")
    expected = (
        r"'block_1.up' is a part of the jax.checkpoint at .*, inside of which no stage can end. Checkpoint each layer"
    )
    with pytest.raises(MarkError, match=expected):
        marks_of(jq.mark_layers(model.apply, "block_1.up"), params, TOKENS)
    model, params = linen("scan")
    for where in ("blocks.block.up", "blocks.1.block.up"):
        with pytest.raises(
            MarkError, match=rf"'{where}' is a part of the lax.scan at .*: name one, as in .*blocks.*\[0\]"
        ):
            marks_of(jq.mark_layers(model.apply, where), params, TOKENS)


def test_the_nearest_module():
    model, params = linen("list")
    with pytest.raises(MarkError, match=r"no layer matches 'blok_1'. Nearest: .*block_1"):
        marks_of(jq.mark_layers(model.apply, "blok_1"), params, TOKENS)


# Flax NNX and Equinox: paths of parameters.


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs), nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, hidden):
        return hidden + self.down(nnx.gelu(self.up(self.norm(hidden))))


class NnxModel(nnx.Module):
    def __init__(self, rngs, *, is_rematted):
        self.embedding = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(3)])
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)
        self.is_rematted = is_rematted

    def __call__(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = nnx.remat(NnxBlock.__call__)(block, hidden) if self.is_rematted else block(hidden)
        return self.head(hidden)


@pytest.mark.parametrize("is_rematted", [False, True])
def test_modules_of_nnx(is_rematted):
    abstract = nnx.eval_shape(lambda: NnxModel(nnx.Rngs(0), is_rematted=is_rematted))
    graph, params, rest = nnx.split(abstract, nnx.Param, ...)

    def model(params, tokens):
        return nnx.merge(graph, params, rest)(tokens)

    for where in ("blocks.1", "blocks[1]", "['blocks'][1]"):
        assert marks_of(jq.mark_layers(model, where), params, TOKENS) == {"blocks.1": HIDDEN}
    assert len(marks_of(jq.mark_layers(model, "blocks.*"), params, TOKENS)) == 3


class EquinoxBlock(eqx.Module):
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=keys[0])
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=keys[1])

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.up(self.norm(x))))


class EquinoxModel(eqx.Module):
    embedding: eqx.nn.Embedding
    blocks: list[EquinoxBlock]
    head: eqx.nn.Linear
    is_checkpointed: bool = eqx.field(static=True)

    def __init__(self, key, *, is_checkpointed):
        keys = jax.random.split(key, 5)
        self.embedding = eqx.nn.Embedding(VOCAB, WIDTH, key=keys[0])
        self.blocks = [EquinoxBlock(key) for key in keys[1:4]]
        self.head = eqx.nn.Linear(WIDTH, VOCAB, key=keys[4])
        self.is_checkpointed = is_checkpointed

    def __call__(self, tokens):
        def over_tokens(layer):
            return eqx.filter_vmap(eqx.filter_vmap(layer))

        hidden = over_tokens(self.embedding)(tokens)
        for block in self.blocks:
            call = over_tokens(block)
            hidden = eqx.filter_checkpoint(call)(hidden) if self.is_checkpointed else call(hidden)
        return over_tokens(self.head)(hidden)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_modules_of_equinox(is_checkpointed):
    model = eqx.filter_eval_shape(EquinoxModel, jax.random.key(0), is_checkpointed=is_checkpointed)
    marked = jq.mark_layers(lambda model, tokens: model(tokens), ".blocks[1]")
    assert marks_of(marked, model, TOKENS) == {"blocks.1": HIDDEN}


@pytest.mark.slow
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_numbers_of_equinox(is_checkpointed):
    params, static = eqx.partition(EquinoxModel(jax.random.key(0), is_checkpointed=is_checkpointed), eqx.is_array)

    def loss_fn(params, microbatch):
        return cross_entropy(eqx.combine(params, static)(microbatch["tokens"]), microbatch["targets"])

    params = check_numbers("blocks.*", loss_fn, params, num_stages=3)
    assert [block.up.weight.placement[0].actors for block in params.blocks] == [(0,), (1,), (2,)]


@pytest.mark.slow
@pytest.mark.parametrize("is_rematted", [False, True])
def test_numbers_of_nnx(is_rematted):
    graph, params, rest = nnx.split(NnxModel(nnx.Rngs(0), is_rematted=is_rematted), nnx.Param, ...)

    def loss_fn(params, microbatch):
        return cross_entropy(nnx.merge(graph, params, rest)(microbatch["tokens"]), microbatch["targets"])

    check_numbers("blocks.1", loss_fn, params)
