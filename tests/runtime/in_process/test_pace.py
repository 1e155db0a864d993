import jax
import pytest

from jaxquard.ir.program import Send
from jaxquard.runtime.in_process.pace import WAKE_COST_S, Pace
from tests.runtime.build_program import ProgramBuilder, array_type
from tests.runtime.mlp_pipeline import MlpPipeline


@pytest.fixture(scope="module")
def program():
    return MlpPipeline(num_stages=4, num_microbatches=8).program()


def with_times(program, time_s, **kwargs):
    pace = Pace(program, can_be_together=True, **kwargs)
    for times_s in pace.fastest_s:
        times_s[:] = [time_s] * len(times_s)
    return pace


def test_apart_until_every_call_was_timed(program):
    pace = Pace(program, can_be_together=True)
    assert not pace.is_together()
    for times_s in pace.fastest_s[1:]:
        times_s[:] = [1e-6] * len(times_s)
    assert not pace.is_together()


def test_tiny_tasks_are_fed_together_and_long_ones_apart(program):
    assert with_times(program, 1e-6).is_together()
    assert not with_times(program, 1e-2).is_together()


def test_the_limit_is_what_side_by_side_can_save(program, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    num_messages = sum(isinstance(i, Send) for actor in program.actors for i in actor.instructions)
    num_runs = 17
    limit_s = (num_messages + 4) * WAKE_COST_S / (3 * num_runs)
    assert with_times(program, 0.99 * limit_s).is_together()
    assert not with_times(program, 1.01 * limit_s).is_together()


def test_one_core_saves_nothing(program, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert with_times(program, 1.0).is_together()


def test_actors_that_cannot_be_judged_stay_apart(program):
    pace = Pace(program, can_be_together=False)
    pace.fastest_s = with_times(program, 1e-6).fastest_s
    assert not pace.is_together()


@pytest.mark.parametrize("is_inside_a_loop", [False, True])
def test_callbacks_stay_apart(is_inside_a_loop):
    def call_back(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def loop(x):
        return jax.lax.scan(lambda x, _: (call_back(x), None), x, length=2)[0]

    builder = ProgramBuilder(1)
    (actor,) = builder.actors
    call = builder.call(loop if is_inside_a_loop else call_back, array_type(4), name="f")
    actor.output(actor.run("f", call, actor.input(array_type(4), 0))[0], 0)
    assert not with_times(builder.build(), 1e-6).is_together()
