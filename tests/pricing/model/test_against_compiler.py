"""The model against the compile pricer, which walks what a compiler has scheduled: three strategies of a GPT."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from jaxquard.cluster import load_cluster
from jaxquard.models import gpt
from jaxquard.pricing import CompilePricer, Parallelism, ShardedProgram, Transformer, find_system, price_step

CLUSTER = "cpu-8"
CONFIG = gpt.GptConfig(
    num_layers=2, num_heads=8, model_dim=512, vocab_size=2048, sequence_length=256, dtype=jnp.float32
)
BATCH = 32
# XLA on CPUs: attention is not fused, passes move twice the bytes of 16 bits and come in smaller kernels, nothing
# hides, gradients are summed in 32 bits; the program has no optimizer.
SYSTEM = replace(
    find_system("any"),
    attention="unfused",
    elementwise=6.0,
    tensor_overlap=0.0,
    data_overlap=0.0,
    fsdp_overlap=0.0,
    optimizer_passes=0.0,
    jitter=0.0,
)
STRATEGIES = {
    "data": Parallelism(dtype="fp32", data=8, microbatch=4, global_batch=BATCH),
    "tensor": Parallelism(dtype="fp32", tensor=8, microbatch=BATCH, global_batch=BATCH),
    "fsdp": Parallelism(dtype="fp32", data=8, zero=3, microbatch=4, global_batch=BATCH),
}
# The dim of each parameter that a tensor group shards; all others are replicated.
SHARDED_DIMS = {
    "['qkv']['kernel']": 2,
    "['qkv']['bias']": 1,
    "['out']['kernel']": 0,
    "['up']['kernel']": 1,
    "['up']['bias']": 0,
    "['down']['kernel']": 0,
    "['head']": 0,
}


def sharded(ndim, dim):
    return P(*("x" if index == dim else None for index in range(ndim)))


def spec_of(kind, path, leaf):
    name = jax.tree_util.keystr(path)
    if "tokens" in name or "targets" in name:
        return P() if kind == "tensor" else P("x")
    if kind == "fsdp":
        return sharded(leaf.ndim, next(dim for dim, size in enumerate(leaf.shape) if size % 8 == 0))
    if kind == "tensor":
        dim = next((dim for end, dim in SHARDED_DIMS.items() if name.endswith(end)), None)
        return P() if dim is None else sharded(leaf.ndim, dim)
    return P()


def program(kind):
    """The loss and its gradients, with parameters and batch sharded as a strategy says."""
    params = jax.eval_shape(lambda key: gpt.init(key, CONFIG), jax.random.key(0))
    batch = {name: jax.ShapeDtypeStruct((BATCH, 256), jnp.int32) for name in ("tokens", "targets")}
    leaves, tree = jax.tree_util.tree_flatten_with_path((params, batch))
    specs = tuple(spec_of(kind, path, leaf) for path, leaf in leaves)

    def step(*values):
        params, batch = jax.tree.unflatten(tree, values)
        return jax.tree.leaves(jax.value_and_grad(lambda params: gpt.loss(params, batch, CONFIG))(params))

    jaxpr = jax.make_jaxpr(step)(*(leaf for _, leaf in leaves))
    num_params = len(jax.tree.leaves(params))
    return ShardedProgram(name=kind, jaxpr=jaxpr, in_specs=specs, out_specs=(P(), *specs[:num_params]))


@pytest.mark.slow
def test_three_strategies_cost_what_the_compiled_programs_cost():
    transformer = Transformer(num_layers=2, hidden=512, num_heads=8, vocab=2048, seq=256, is_tied=False)
    cluster = load_cluster(CLUSTER)
    with CompilePricer(cluster, AbstractMesh((8,), ("x",)), cache=None, num_compilers=1) as pricer:
        compiled = {kind: pricer.price(program(kind)) for kind in STRATEGIES}
    modelled = {kind: price_step(transformer, one, cluster, SYSTEM) for kind, one in STRATEGIES.items()}
    for kind, price in compiled.items():
        assert modelled[kind].time_s == pytest.approx(price.time_s, rel=0.1), kind
