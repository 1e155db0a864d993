"""GPT and LLAMA whose layers run on a 2D mesh beside data parallelism: the same losses, and no other traffic."""

import functools
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxquard.errors import GemmError
from jaxquard.gemm import FcLayer, GemmPlan, GemmProblem, LayerPlan, Stationary, autotune, products
from jaxquard.models import gpt, llama
from tests.gemm.collectives import list_collectives
from tests.gemm.meshes import compile_quickly, make_mesh

SLICES = 2
NAMES = {"axis_names": ("x", "y")}
GPT = gpt.GptConfig(vocab_size=16, sequence_length=8, model_dim=32, num_heads=4, num_layers=2, dtype=jnp.float32)
LLAMA = llama.LlamaConfig(
    vocab_size=16,
    sequence_length=8,
    model_dim=32,
    num_heads=4,
    num_kv_heads=2,
    num_layers=2,
    mlp_dim=64,
    dtype=jnp.float32,
)
MODELS = {"gpt": (gpt, GPT), "llama": (llama, LLAMA)}


def make_plan(*, kept="yxyx", slices=SLICES):
    layers = tuple(
        LayerPlan(name=name, stationary=Stationary(letter), slices=(slices,) * 3, block=2)
        for name, letter in zip(("qkv", "out", "ff1", "ff2"), kept, strict=True)
    )
    return GemmPlan(algorithm="meshslice", mesh_shape=(2, 2), layers=layers)


@functools.cache
def compiled(name, num_layers, kept="yxyx"):
    """The step, its parameters and its batch, placed on a (2, 2, 2) mesh; tests of the same one share it."""
    model, config = MODELS[name]
    config, mesh = replace(config, num_layers=num_layers), make_mesh((2, 2, 2), ("dp", "x", "y"))
    planned = products(make_plan(kept=kept), mesh=mesh, **NAMES)
    params = model.init(jax.random.key(0), config)
    params = jax.device_put(params, model.shardings(params, planned))
    batch = model.synthetic_batch(jax.random.key(1), config, num_microbatches=1, microbatch_size=8)
    batch = {key: jax.device_put(value[0], NamedSharding(mesh, P(("dp", "x")))) for key, value in batch.items()}

    def step(params, batch):
        return jax.value_and_grad(lambda params: model.loss(params, batch, config, products=planned))(params)

    return compile_quickly(step, params, batch), params, batch, config


@pytest.mark.thin(3)
@pytest.mark.parametrize(("name", "kept"), [("gpt", "yxyx"), ("llama", "yxyx"), ("gpt", "wyxw")])
def test_losses_and_gradients_are_those_of_one_device(name, kept):
    """Also with stationary weights, between which rows and columns of the mesh change their parts."""
    step, params, batch, config = compiled(name, 2, kept)
    model = MODELS[name][0]
    whole_params, whole_batch = jax.tree.map(np.asarray, (params, batch))
    expected = jax.jit(jax.value_and_grad(lambda params: model.loss(params, whole_batch, config)))(whole_params)
    found = step(params, batch)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5), found, expected)


def count(text):
    """Collectives by kind, bytes and size of their groups; those that the compiler joined count each."""
    return Counter(
        (found.kind, size, len(found.groups[0])) for found in list_collectives(text) for size in found.result_bytes
    )


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_layer_sends_its_products_and_the_sums_of_its_norms(name):
    """By the difference between models of three and of two layers; nothing else moves inside a layer."""
    two, three = (count(compiled(name, num_layers, "yxyx")[0].as_text()) for num_layers in (2, 3))
    assert not two - three
    _, config = MODELS[name]
    # Of float32 numbers on one of 8 chips; rows are those of the batch on 2 replicas.
    d, m, rows = config.model_dim, config.mlp_dim, 8 * 8
    qkv, up = (3 * d, m) if name == "gpt" else ((4 + 2 * 2) * 8, 2 * m)
    expected = Counter()
    for kept, k, n in (("y", d, qkv), ("x", d, d), ("y", d, up), ("x", m, d)):
        x, w, y = (4 * size // 4 for size in (rows * k // 2, k * n, rows * n // 2))
        # Table 1: both moving matrices are gathered in two of the three products, and their sums scattered in one.
        for shard in {"y": (x, w), "x": (w, y)}[kept]:
            expected["all-gather", 2 * shard // SLICES, 2] += 2 * SLICES
            expected["reduce-scatter", shard // SLICES, 2] += SLICES
        expected["all-reduce", w, 2] += 1  # the gradient of w over the replicas
        if name == "gpt":
            expected["all-reduce", 4 * n // 2, 4] += 1  # of the bias, over rows and replicas
    numbers = 2 if name == "gpt" else 1
    for _ in range(2):
        expected["all-reduce", 4 * numbers * rows // 4, 2] += 2  # a norm, forward and backward
        expected["all-reduce", 4 * numbers * d // 2, 4] += 1  # gradients of its parameters
    assert three - two == expected


def test_scanned_layers():
    mesh = make_mesh((2, 2, 2), ("dp", "x", "y"))
    planned = products(make_plan(), mesh=mesh, **NAMES)
    params = gpt.stack_layers(gpt.init(jax.random.key(0), GPT))
    batch = gpt.synthetic_batch(jax.random.key(1), GPT, num_microbatches=1, microbatch_size=8)
    batch = jax.tree.map(lambda leaf: leaf[0], batch)
    placed = jax.device_put(params, gpt.shardings(params, planned))
    found = compile_quickly(lambda params: gpt.loss_scanned(params, batch, GPT, products=planned, remat=True), placed)
    expected = jax.jit(lambda params: gpt.loss_scanned(params, batch, GPT))(params)
    np.testing.assert_allclose(found(placed), expected, rtol=1e-5)


def test_a_tuned_plan():
    """The autotuner's plan of a LLAMA's four products, on a mesh that is set."""
    d, m = LLAMA.model_dim, LLAMA.mlp_dim
    layers = (
        FcLayer(name="qkv", in_features=d, out_features=64),
        FcLayer(name="out", in_features=d, out_features=d, ends_residual=True),
        FcLayer(name="ff1", in_features=d, out_features=2 * m),
        FcLayer(name="ff2", in_features=m, out_features=d, ends_residual=True),
    )
    tuning = autotune(GemmProblem(layers=layers, num_rows=64), "tpu-v4", 4, mesh_shape=(2, 2))
    params = llama.init(jax.random.key(0), LLAMA)
    batch = llama.synthetic_batch(jax.random.key(1), LLAMA, num_microbatches=1, microbatch_size=8)
    batch = jax.tree.map(lambda leaf: leaf[0], batch)
    with jax.set_mesh(make_mesh((2, 2))):
        found = jax.jit(lambda params: llama.loss(params, batch, LLAMA, products=products(tuning)))(params)
    np.testing.assert_allclose(found, jax.jit(lambda params: llama.loss(params, batch, LLAMA))(params), rtol=1e-5)


def test_plans_that_are_none():
    with pytest.raises(GemmError, match=r"plan must be what `autotune` returns, or a GemmPlan; found 'plan.json'"):
        products("plan.json")
    planned = products(make_plan(), mesh=make_mesh((2, 2)))
    with pytest.raises(GemmError, match="the plan has the layers qkv, out, ff1, ff2, but found layer='up'"):
        planned.matmul(jnp.ones((8, 8)), jnp.ones((8, 8)), layer="up")
    with pytest.raises(GemmError, match="the first dim of features must be a multiple of 2"):
        planned.matmul(jnp.ones((8, 32)), jnp.ones((32, 3, 16)), layer="qkv")
    with pytest.raises(GemmError, match="w must be an array, but is list"):
        planned.matmul(jnp.ones((8, 32)), [1.0], layer="qkv")
