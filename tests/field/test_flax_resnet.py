"""ResNet-18 of transformers' Flax models: its batch statistics are carried from microbatch to microbatch."""

import functools

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from tests.field.pipelined import MICROBATCHES, largest_error
from tests.pipeline.oracle import accumulate, assert_close
from tests.pipeline.planning import with_schedule

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.modeling_flax_utils")
pytestmark = pytest.mark.filterwarnings("ignore")

STAGES = ["encoder.stages.0", "encoder.stages.1", "encoder.stages.2"]


def make_model():
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 12, 16, 24],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=5,
    )
    return transformers.FlaxResNetForImageClassification(config, input_shape=(1, 32, 32, 3), seed=0)


def make_step(model, *, is_marked):
    def loss(params, stats, images):
        variables = {"params": params, "batch_stats": stats}
        outputs, updated = model(images, params=variables, train=True)
        return jnp.mean(jax.nn.logsumexp(outputs.logits, axis=-1) - outputs.logits[:, 0]), updated["batch_stats"]

    loss = jq.mark_layers(loss, STAGES) if is_marked else loss

    def step(accumulate, state, batch):
        def microbatch_grads(stats, images):
            (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], stats, images)
            return stats, (grads, value)

        stats, (grads, losses) = accumulate(microbatch_grads, ("mean", "stack"), carry=state["batch_stats"])(batch)
        params = jax.tree.map(lambda param, grad: param - 0.1 * grad, state["params"], grads)
        return {"params": params, "batch_stats": stats}, losses

    return step


def test_statistics_are_carried():
    """A step in four stages, on four actors, has the weights and statistics of a plain loop; each stage has its own."""
    model = make_model()
    images = jax.random.normal(jax.random.key(1), (MICROBATCHES, 8, 3, 32, 32))
    state = jax.tree.map(jnp.asarray, dict(model.params))
    plain = functools.partial(make_step(model, is_marked=False), accumulate)
    expected = plain(state, images)
    control = largest_error(plain(state, images[:, ::-1]), expected)
    with jq.RemoteMesh((4,)) as mesh:
        step = mesh.distributed(with_schedule(make_step(model, is_marked=True), jq.schedules.OneFOneB(4)))
        found = step(state, images)
        homes = {
            jax.tree_util.keystr(path): leaf.placement[0].actors
            for path, leaf in jax.tree.leaves_with_path(found[0]["batch_stats"])
        }
        found = jax.tree.map(jnp.asarray, jax.device_get(found))
    print(f"OneFOneB(4): error {largest_error(found, expected):.1e}, control {control:.1e}")  # noqa: T201
    assert_close(found, expected)
    for stage in range(4):
        assert {actors for path, actors in homes.items() if f"['stages']['{stage}']" in path} == {(stage,)}
