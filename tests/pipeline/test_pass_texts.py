"""The texts of a step after each pass: golden texts, and the forms that these do not have."""

import re

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from jaxquard.pipeline.loop import ReduceOp
from jaxquard.pipeline.step_text import write_step
from tests.pipeline.planning import trace


def loss_fn(params, x):
    """Two stages; `shared` is used by both, `scale` is the same for every microbatch."""
    scale = jnp.exp(params["scale"])
    hidden = jnp.tanh(x @ params["shared"]) * scale
    hidden = jq.pipeline_yield(hidden, name="first")
    return jnp.sum((hidden @ params["shared"]) ** 2)


def train_step(params, batch):
    def microbatch_grads(x):
        loss, grads = jax.value_and_grad(loss_fn)(params, x)
        return grads, loss

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2))(batch)
    return jax.tree.map(lambda param, grad: param - grad, params, grads), losses


@pytest.fixture(scope="module")
def lowered():
    step = jq.RemoteMesh((2,)).distributed(train_step, donate_argnums=(0,))
    return step.lower({"scale": jnp.zeros(()), "shared": jnp.zeros((4, 4))}, jnp.zeros((3, 2, 4)))


@pytest.mark.parametrize(
    "name", ["inline_calls", "hoist_invariants", "assign_stages", "commute_sums", "place_equations", "form_tasks"]
)
def test_texts_of_the_passes(lowered, golden, name):
    golden(lowered.as_text(name))


def test_a_value_keeps_its_name_from_pass_to_pass(lowered):
    before, after = (lowered.as_text(name).splitlines() for name in ("hoist_invariants", "own_results"))
    assert len(set(before) & set(after)) > 20
    (made_by_stage,) = re.findall(r"0F: (\w+):float32\[2,4\] = tanh", lowered.as_text("assign_stages"))
    assert f"-> ({made_by_stage}:float32[2,4]" in lowered.as_text("form_tasks")


def test_every_pass_has_a_text(lowered):
    assert lowered.passes[0].name == "trace"
    texts = [record.text for record in lowered.passes]
    assert all(text.endswith("\n") for text in texts)
    assert max(len(line) for text in texts for line in text.splitlines()) < 180


REDUCTIONS = {
    "sum": "b += d",
    "mean": "b += d / 3",
    "max": "b = max b d",
    "stack": "b[microbatch] = d",
    "last": "b = d, of the last microbatch",
}


@pytest.mark.parametrize("word", REDUCTIONS)
def test_reductions(word):
    step = jq.accumulate_grads(jnp.sin, jq.schedules.GPipe(1), word)
    text = write_step(trace(step, jnp.zeros((3, 2)))[0])
    assert text.splitlines()[2:5] == [
        "  c:float32[2] = a[microbatch]",
        "  d:float32[2] = sin c",
        f"  {REDUCTIONS[word]}",
    ]
    assert {*REDUCTIONS, "carry"} == {op.value for op in ReduceOp}


def test_carry():
    step = jq.accumulate_grads(lambda c, x: (c + x, x), jq.schedules.GPipe(1), carry=jnp.zeros(2))
    text = write_step(trace(step, jnp.zeros((3, 2)))[0])
    assert text.splitlines()[-7:-2] == [
        "  e:float32[2] = carry from b",
        "  f:float32[2] = a[microbatch]",
        "  g:float32[2] = add e f",
        "  c = g, carried to the next microbatch",
        "  d += f",
    ]


def test_one_microbatch_and_closed_over_values():
    closed_over = jnp.ones(4)
    step = jq.accumulate_grads(lambda x: x * closed_over, jq.schedules.GPipe(1))
    lines = write_step(trace(step, jnp.zeros((1, 4)))[0]).splitlines()
    assert lines[:2] == ["input   a = arg 0 : float32[1,4]", "const   b = value 0 : float32[4]"]
    assert lines[2].endswith("= accumulate_grads GPipe(1), 1 microbatch")


def test_parts_of_stacked_leaves():
    def loss_fn(kernels, x):
        hidden, _ = jq.pipeline_scan(lambda h, k: (jnp.tanh(h @ k), None), x, kernels, num_stages=2)
        return jnp.sum(hidden)

    def train_step(kernels, batch):
        def microbatch_grads(x):
            return jax.grad(loss_fn)(kernels, x)

        return kernels - jq.accumulate_grads(microbatch_grads, jq.schedules.GPipe(2))(batch)

    lowered = jq.RemoteMesh((2,)).distributed(train_step).lower(jnp.zeros((3, 4, 4)), jnp.zeros((2, 2, 4)))
    lines = lowered.as_text("split_stacks").splitlines()
    assert re.fullmatch(r"input   \w+ = arg 0 part 0 : float32\[2,4,4\]", lines[0])
    assert re.fullmatch(r"input   \w+ = arg 0 part 1 : float32\[1,4,4\]", lines[1])
    assert re.fullmatch(r"output  result 0 part 0 = \w+", lines[-2])
    assert re.fullmatch(r"output  result 0 part 1 = \w+", lines[-1])
