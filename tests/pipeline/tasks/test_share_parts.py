"""Actors share the equal parts of tasks outside the loops; the numbers are those of the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from jaxquard.ir.program import Run, Send
from tests.pipeline.mlp_step import MlpStep, adamw
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import count_outside_loops, plan, runs, sizes_counting_as, tasks, with_schedule

NUM_STAGES = 3


def model_step(optimizer):
    """A step of three stages with equal layers, an embedding before and a head after them."""

    def step(accumulate, state, batch):
        def loss(params, microbatch):
            hidden = microbatch @ params["embedding"]
            for number, layer in enumerate(params["layers"]):
                hidden = jnp.tanh(hidden @ layer["kernel"] + layer["bias"])
                hidden = jnp.sin(hidden @ layer["second"] + layer["shift"])
                hidden = jq.pipeline_yield(hidden) if number < NUM_STAGES - 1 else hidden
            return jnp.sum(jnp.square(hidden @ params["head"]))

        grads = accumulate(lambda microbatch: jax.grad(loss)(state["params"], microbatch), "sum")(batch)
        updates, optimizer_state = optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer_state}

    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) * 0.3, jnp.float32)  # noqa: E731
    layers = [
        {"kernel": draw(4, 6), "bias": draw(6), "second": draw(6, 4), "shift": draw(4)} for _ in range(NUM_STAGES)
    ]
    params = {"embedding": draw(3, 4), "layers": layers, "head": draw(4, 2)}
    return step, {"params": params, "optimizer": optimizer.init(params)}, draw(4, 2, 3)


def plan_model(optimizer):
    step, state, batch = model_step(optimizer)
    schedule = jq.schedules.OneFOneB(NUM_STAGES)
    planned = plan(with_schedule(step, schedule), state, batch, num_actors=NUM_STAGES)
    assert_close(planned.run(state, batch), run_oracle(step, state, batch))
    return planned.program


def calls_by_actor(program, ending):
    """The calls of tasks with such a name, of each actor."""
    return [
        [run.call for _, run in runs(program, actor) if run.task.endswith(ending)]
        for actor in range(len(program.actors))
    ]


def test_equal_layers_of_all_actors_are_updated_by_one_call():
    with sizes_counting_as(large=True):
        program = plan_model(optax.adam(0.1))
    first, *others = calls_by_actor(program, ".shared")
    assert len(first) == 1
    assert others == [first] * (NUM_STAGES - 1)
    assert [task for task in tasks(program, 1) if task.startswith("after")] == ["after.0.shared"]
    assert [task for task in tasks(program, 2) if task.startswith("after")] == ["after.0", "after.0.shared"]


def test_actor_that_computes_the_global_norm_shares_too_and_sends_it_first():
    with sizes_counting_as(large=True):
        program = plan_model(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)))
    shared = calls_by_actor(program, ".shared")
    assert len(shared[0]) == 2, "squares, and the update"
    assert shared == [shared[0]] * NUM_STAGES
    instructions = program.actors[0].instructions
    position = {i.task: number for number, i in enumerate(instructions) if isinstance(i, Run)}
    sent = [number for number, i in enumerate(instructions) if isinstance(i, Send) and number > position["after.1"]]
    assert sent, "the norm"
    assert max(sent) < position["after.1.shared"]


def test_small_parts_are_not_shared():
    program = plan_model(optax.sgd(0.1))
    assert not any(calls_by_actor(program, ".shared"))


def test_tasks_that_are_equal_already_keep_their_names():
    step = MlpStep(2, num_layers=12, optimizer=optax.adam(0.1))
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), *step.arguments(2), num_actors=2)
    assert not any(calls_by_actor(planned.program, ".shared"))
    assert calls_by_actor(planned.program, "after.0")[0] == calls_by_actor(planned.program, "after.0")[1]


def test_nothing_but_scalars_is_computed_twice():
    step, state, batch = model_step(optax.adamw(optax.linear_schedule(0.1, 0.01, 10)))
    args = with_schedule(step, jq.schedules.OneFOneB(NUM_STAGES)), state, batch
    with sizes_counting_as(large=True):
        program = plan(*args, num_actors=NUM_STAGES).program
    assert any(calls_by_actor(program, ".shared"))
    assert count_outside_loops(program, "sqrt") == len(jax.tree.leaves(state["params"]))


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.lamb(0.1),
        optax.adafactor(0.1, min_dim_size_to_factor=4),
        adamw(),
        optax.chain(optax.adaptive_grad_clip(0.1), optax.adam(0.1)),
    ],
    ids=["lamb", "adafactor", "adamw", "adaptive clipping"],
)
def test_optimizers_with_norms_of_leaves_and_schedules(optimizer):
    with sizes_counting_as(large=True):
        plan_model(optimizer)
