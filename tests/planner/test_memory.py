"""The memory of a plan, held against the slots of the program that runs it."""

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxquard as jq
from jaxquard.models import gpt
from jaxquard.simulate.play_program import play_program

CONFIG = gpt.GptConfig(vocab_size=256, num_layers=2, num_heads=4, model_dim=64, sequence_length=64, dtype=jnp.float32)
PARAMS = jax.eval_shape(lambda key: gpt.init(key, CONFIG), jax.random.key(0))
TOKENS = jax.ShapeDtypeStruct((16, CONFIG.sequence_length), jnp.int32)


def zeros(types):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), types)


def loss(params, batch):
    return gpt.loss(params, batch, CONFIG)


@pytest.mark.parametrize(
    ("recompute", "storage"),
    [
        ("full", "zero 1"),
        pytest.param("none", "as used", marks=pytest.mark.slow),
        pytest.param("selective", "as used", marks=pytest.mark.slow),
        pytest.param("none", "zero 2", marks=pytest.mark.slow),
        pytest.param("none", "zero 3", marks=pytest.mark.slow),
    ],
)
def test_a_plan_has_the_memory_of_its_program(recompute, storage):
    """Masks that depend on no input are made in every task, and derivatives of activations in the backward."""
    fix = {"actors": 2, "data": 2, "microbatches": 4, "schedule": "1f1b", "recompute": recompute, "storage": storage}
    batch = {"tokens": TOKENS, "targets": TOKENS}
    with jq.parallelize(loss, optax.adam(1e-3), (PARAMS, batch), devices=4, fix=fix, num_measured=0) as run:
        program = run.distributed.lower(run.init(lambda: zeros(PARAMS)), zeros(batch)).program
    played = play_program(program, [1.0] * len(program.calls), axis_sizes=run.plan.axes)
    # What tasks use inside of themselves is in no slot.
    planned_bytes = run.plan.memory_bytes - run.plan.memory.working_bytes
    assert planned_bytes == pytest.approx(max(played.peaks_bytes), rel=0.1)
