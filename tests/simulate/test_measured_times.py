"""A step that ran on actors, played again from its own program and its own times."""

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from jaxquard.errors import ProgramError
from jaxquard.ir.program.parse import parse_program
from jaxquard.ir.timeline import Timeline, Track
from jaxquard.simulate import ActorLink, measured_call_times, play_program


def train_step(params, batch):
    def grads_of(microbatch):
        def loss(params):
            hidden = jq.pipeline_yield(jnp.tanh(microbatch @ params[0]))
            return jnp.mean((hidden @ params[1]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return grads, value

    grads, losses = jq.accumulate_grads(grads_of, jq.schedules.OneFOneB(2))(batch)
    return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), losses


def test_a_step_plays_as_it_ran():
    params = [jnp.ones((64, 64)), jnp.ones((64, 64))]
    batch = jnp.ones((4, 32, 64))
    with jq.RemoteMesh((2,)) as mesh:
        step = mesh.distributed(train_step, measure=True)
        for _ in range(2):
            step(params, batch)
        timeline, program = step.timeline(), step.lower(params, batch).program
    times_s = measured_call_times(program, timeline)
    playback = play_program(program, times_s)
    ran = sorted((span.actor, span.name) for span in timeline.spans if span.track is Track.COMPUTE)
    assert sorted((span.actor, span.name) for span in playback.timeline.spans) == ran
    assert playback.step_time_s > 0
    slower = play_program(program, times_s, links=dict.fromkeys([(0, 1), (1, 0)], ActorLink(latency_s=1.0)))
    # The first microbatch goes there and the last gradient comes back.
    assert slower.step_time_s >= playback.step_time_s + 2.0
    # Both weights are there before the step, each on its actor.
    assert all(memory.peak_parts()["weights"] >= 64 * 64 * 4 for memory in playback.memory)


def test_a_timeline_of_another_program():
    text = "call 0 f() -> (float32[])\nactor 0\n run s0 = 0F0 f#0()\n"
    with pytest.raises(ProgramError, match="the timeline has no run of 0F0 on actor 0, which the program has"):
        measured_call_times(parse_program(text), Timeline(num_actors=1, spans=()))
