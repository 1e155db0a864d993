"""State that rests in shards over the data axis: gathered once before the loop, reduced once after it.

Collectives are counted in what XLA compiles for each task on a mesh of two devices per actor.
"""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

import jaxquard as jq
from tests.pipeline.oracle import run_oracle
from tests.slow_but_for import slow_but_for

VOCAB, WIDTH, NUM_MICROBATCHES = 8, 4, 3
DATA = PartitionSpec("data")


def init_state(key, scanned=False):
    keys = jax.random.split(key, 5)
    layers = [
        {
            "up": jax.random.normal(keys[2 * layer], (WIDTH, 2 * WIDTH)) * 0.3,
            "bias": jnp.zeros(2 * WIDTH),
            "down": jax.random.normal(keys[2 * layer + 1], (2 * WIDTH, WIDTH)) * 0.3,
        }
        for layer in range(2)
    ]
    if scanned:
        layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    params = {"table": jax.random.normal(keys[4], (VOCAB, WIDTH)), "layers": layers}
    return {"params": params, "opt": optax.adam(1e-2).init(params)}


def apply_layer(layer, hidden, *, dtype):
    layer = jax.tree.map(lambda leaf: leaf.astype(dtype).astype(jnp.float32), layer)
    return hidden + jax.nn.gelu(hidden @ layer["up"] + layer["bias"]) @ layer["down"]


def step_fn(loop, state, batch, *, rematted, scanned, dtype):
    apply = functools.partial(apply_layer, dtype=dtype)
    if rematted:
        apply = jax.checkpoint(apply)

    def loss_fn(params, microbatch):
        hidden = params["table"][microbatch["tokens"]]
        if scanned:
            body = lambda hidden, layer: (apply(layer, hidden), None)  # noqa: E731
            hidden, _ = jq.pipeline_scan(body, hidden, params["layers"], num_stages=2)
        else:
            hidden = apply(params["layers"][0], hidden)
            hidden = jq.pipeline_yield(hidden)
            hidden = apply(params["layers"][1], hidden)
        logits = hidden @ params["table"].T
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), microbatch["targets"][..., None], -1)
        return -jnp.mean(picked)

    def microbatch_grads(microbatch):
        value, grads = jax.value_and_grad(loss_fn)(state["params"], microbatch)
        return grads, value

    grads, losses = loop(microbatch_grads)(batch)
    updates, opt = optax.adam(1e-2).update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, losses


def make_batch():
    rng = np.random.default_rng(0)
    shape = (NUM_MICROBATCHES, 4, 3)
    return {"tokens": rng.integers(0, VOCAB, shape), "targets": rng.integers(0, VOCAB, shape)}


def state_types(scanned):
    return jax.eval_shape(lambda key: init_state(key, scanned), jax.random.key(0))


def shardings_of(state, scanned):
    """Every leaf sharded over its first dim; stacked ones over the dim behind the layers."""

    def spec(path, leaf):
        stacked = scanned and any(getattr(key, "key", None) == "layers" for key in path)
        return PartitionSpec() if not leaf.ndim else PartitionSpec(None, "data") if stacked else DATA

    return jax.tree_util.tree_map_with_path(spec, state)


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh((2,), spmd_mesh=(2,), spmd_axis_names=("data",)) as mesh:
        yield mesh


def make_step(mesh, schedule, **options):
    def train_step(state, batch):
        loop = lambda fn: jq.accumulate_grads(fn, schedule)  # noqa: E731
        return step_fn(loop, state, batch, **options)

    state = state_types(options["scanned"])
    return mesh.distributed(
        train_step,
        in_shardings=(shardings_of(state, options["scanned"]), PartitionSpec(None, "data")),
        donate_argnums=(0,),
    )


def count_collectives(mesh, call):
    """Counts each collective of a compiled call, those of scalars left out."""
    shardings = [
        [NamedSharding(mesh.meshes[0], PartitionSpec(*(axes or None for axes in type_.spec))) for type_ in types]
        for types in (call.inputs, call.outputs)
    ]
    types = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in call.code.jaxpr.invars]
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        lowered = jax.jit(core.jaxpr_as_fun(call.code), in_shardings=shardings[0], out_shardings=shardings[1]).lower(
            *types
        )
    text = lowered.compile().as_text()
    found = re.findall(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\(", text)
    return collections.Counter(name for type_, name in found if re.search(r"\[\d", type_))


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("rematted", "scanned"), [(False, False), (True, False), (True, True)], ids=["plain", "remat", "scan"]
)
def test_collectives_stand_outside_the_loop(mesh, rematted, scanned):
    step = make_step(mesh, jq.schedules.OneFOneB(2), rematted=rematted, scanned=scanned, dtype=jnp.bfloat16)
    lowered = step.lower(state_types(scanned), make_batch())
    counts = {call.name: count_collectives(mesh, call) for call in lowered.program.calls}
    in_loop = {name: count for name, count in counts.items() if name.startswith("stage")}
    assert len(in_loop) == 3
    assert all(not count for count in in_loop.values()), in_loop
    before = sum((count for name, count in counts.items() if name.startswith("before")), collections.Counter())
    after = sum((count for name, count in counts.items() if name.startswith("after")), collections.Counter())
    assert before["all-gather"] >= 1
    assert after["reduce-scatter"] >= 3
    assert before["reduce-scatter"] == 0


@pytest.mark.parametrize(
    "schedule",
    slow_but_for([jq.schedules.OneFOneB(2), jq.schedules.ZeroBubbleH1(2)], [jq.schedules.ZeroBubbleH1(2)]),
    ids=repr,
)
def test_numbers_are_those_of_plain_jax(mesh, schedule):
    step = make_step(mesh, schedule, rematted=True, scanned=False, dtype=jnp.float32)
    state = mesh.init(init_state, jax.random.key(0))
    expected = init_state(jax.random.key(0))
    batch = make_batch()
    for _ in range(2):
        state, losses = step(state, batch)
        expected, expected_losses = run_oracle(
            lambda loop, state, batch: step_fn(loop, state, batch, rematted=True, scanned=False, dtype=jnp.float32),
            expected,
            batch,
        )
        np.testing.assert_allclose(losses, expected_losses, rtol=2e-5)
    jax.tree.map(
        lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5),
        jax.device_get(state),
        expected,
    )
    table = state["params"]["table"]
    assert table.placement[0].spec == DATA
