"""Planning is fast enough for large pipelines, and says what each pass made."""

import time

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxquard as jq
from jaxquard.models import gpt
from jaxquard.pipeline.plan_step import PASSES, Request, plan_step
from tests.machine_pace import machine_pace
from tests.pipeline.mlp_step import MlpStep, adamw
from tests.pipeline.planning import plan, trace, with_schedule


def test_every_pass_is_recorded():
    step = MlpStep(2)
    planned = plan(with_schedule(step, jq.schedules.GPipe(2)), *step.arguments(2), num_actors=2, keep_text=True)
    assert [record.name for record in planned.planned.records] == ["trace", *PASSES]
    assert all(record.text for record in planned.planned.records)
    assert planned.text("insert_frees") == str(planned.program)


def test_the_same_step_gives_the_same_program():
    step = MlpStep(3, is_tied=True, optimizer=adamw())
    texts = {
        str(plan(with_schedule(step, jq.schedules.ZeroBubbleH1(3)), *step.arguments(3), num_actors=3).program)
        for _ in range(2)
    }
    assert len(texts) == 1


@pytest.mark.slow
def test_planning_eight_actors_forty_eight_stages_sixty_four_microbatches():
    """A GPT of 48 layers under the interleaved schedule; planning may take 10 s, besides XLA and tracing."""
    config = gpt.GptConfig(vocab_size=64, num_layers=48, num_heads=2, model_dim=8, sequence_length=8, dtype=jnp.float32)
    optimizer = adamw()

    def step(state, batch):
        def microbatch_grads(microbatch):
            loss = lambda params: gpt.loss(  # noqa: E731
                params, microbatch, config, mark=jq.pipeline_yield, num_stages=48, remat=True
            )
            value, grads = jax.value_and_grad(loss)(state["params"])
            return grads, value

        grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.Interleaved(48, 8))(batch)
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, losses

    params = jax.eval_shape(lambda key: gpt.init(key, config), jax.random.key(0))
    state = {"params": params, "opt": jax.eval_shape(optimizer.init, params)}
    tokens = jax.ShapeDtypeStruct((64, 1, 8), jnp.int32)
    args = (state, {"tokens": tokens, "targets": tokens})
    num_state, num_args = (len(jax.tree.leaves(tree)) for tree in (state, args))
    request = Request(
        num_actors=8,
        donated_args=tuple(range(num_state)),
        result_of_arg=(*range(num_state), *[None] * (num_args - num_state)),
    )
    traced, _ = trace(step, *args)
    start_s = time.process_time()
    planned = plan_step(traced, request=request)
    assert time.process_time() - start_s < 10 * machine_pace()
    assert len(planned.program.calls) < 20, "48 layers are compiled as a few calls"
