"""Public models without marks: a searched sharding, and a planned pipeline, have the numbers of one device.

Prices are in closed form; nothing is measured.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import jaxquard as jq
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.pricing import RooflinePricer
from tests.field.pipelined import find_models, largest_error, random_tokens
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import analyse, mesh_of
from tests.pipeline.oracle import assert_close

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = 8


def make_model(name):
    """Returns the loss, the parameters and a batch; the test is skipped where the package is not installed."""
    tokens = random_tokens(32, size=ROWS)[0]
    if name == "conv_next":
        images = jax.random.normal(jax.random.key(1), (ROWS, 3, 32, 32))
        return *find_models("test_equimo", "equimo").conv_next(), images
    if name == "t5":
        return *find_models("test_flax_transformers", "transformers.modeling_flax_utils").t5(), tokens
    module = find_models("test_keras", "keras_hub")
    return *getattr(module, name)(), {"token_ids": tokens, "padding_mask": jnp.ones_like(tokens)}


def make_step(loss):
    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), value

    return step


def check(found, step, params, batch):
    plain = jax.jit(step)
    expected = plain(params, batch)
    control = largest_error(plain(params, jax.tree.map(lambda leaf: leaf[::-1], batch)), expected)
    found = jax.tree.map(jnp.asarray, jax.device_get(found))
    print(f"error {largest_error(found, expected):.1e}, control {control:.1e}")  # noqa: T201
    assert_close(found, expected)


@pytest.mark.usefixtures("clip_with_old_names")
@pytest.mark.parametrize("name", ["t5", "mixtral", "conv_next"])
def test_a_searched_sharding(name):
    loss, params, batch = make_model(name)
    step = make_step(loss)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    plan = jq.search_sharding(step, (params, batch), mesh=mesh, pricer=RooflinePricer("h100-8", mesh), num_finalists=2)
    check(plan.apply(step, donate=False)(plan.shard(params), batch), step, params, batch)


def test_context_parallelism():
    """LLaMA of transformers on long sequences: sharded along them, wherever that is offered."""
    loss, params = find_models("test_flax_transformers", "transformers.modeling_flax_utils").llama(
        width=32, num_heads=4, num_layers=1, length=256
    )
    step, args = make_step(loss), (params, random_tokens(32, length=256)[0])
    axes = {"data": 2, "model": 4}
    analysis = analyse(step, args, axes)
    assignment = baselines(analysis)["context parallel"].assignment
    assert all(names == ("rows", "sequence") for names in assignment.values())
    check_step(step, args, analysis, [assignment], mesh=mesh_of(**axes))


@pytest.mark.parametrize("name", ["mixtral", "conv_next"])
def test_a_planned_pipeline(name):
    loss, params, batch = make_model(name)
    options = {"devices": 4, "num_measured": 0, "fix": {"stages": 2}}
    with jq.parallelize(loss, optax.sgd(0.1), (params, batch), **options) as run:
        state, metrics = run.step(run.init(lambda: params), batch)
        found = jax.tree.map(np.asarray, (state["params"], metrics["loss"]))
    check(found, make_step(loss), params, batch)
