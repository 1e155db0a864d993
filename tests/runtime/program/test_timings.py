import itertools
import threading
import time

import jax
import numpy as np
import pytest

from jaxquard.ir.timeline import Track
from jaxquard.runtime.in_process.engine import InProcessEngine
from jaxquard.runtime.program.timings import ActorClock, make_timeline, type_bytes
from jaxquard.runtime.transfer import place
from tests.runtime.build_program import ProgramBuilder, array_type, make_meshes

TIME_S = 0.05
NUM_MICROBATCHES = 3


@pytest.fixture(scope="module", params=[1, 2])
def timeline(request):
    def wait(x):
        time.sleep(TIME_S)
        return x

    type_ = array_type(4)
    builder = ProgramBuilder(2)
    call = builder.call(lambda x: jax.pure_callback(wait, jax.ShapeDtypeStruct((4,), np.float32), x), type_, name="w")
    first, second = builder.actors
    start = first.input(type_, 0)
    for microbatch in range(NUM_MICROBATCHES):
        (out,) = first.run(f"0F{microbatch}", call, start)
        first.send(1, out)
        first.free(out)
        (received,) = second.receive(0, type_)
        (out,) = second.run(f"1F{microbatch}", call, received)
        second.free(received)
        second.output(out, microbatch)
    engine = InProcessEngine(make_meshes(2, request.param))
    loaded = engine.load(builder.build())
    inputs = [[place(np.ones(4, np.float32), loaded.input_shardings[0][0])], []]
    engine.execute(loaded, inputs).wait()
    return engine.execute(loaded, inputs, measure=True).timeline()


def spans(timeline, actor, track):
    return [span for span in timeline.spans if span.actor == actor and span.track is track]


def test_every_task_and_transfer_is_there(timeline):
    assert timeline.num_actors == 2
    for actor in range(2):
        names = [span.name for span in spans(timeline, actor, Track.COMPUTE)]
        assert names == [f"{actor}F{microbatch}" for microbatch in range(NUM_MICROBATCHES)]
    transfers = spans(timeline, 0, Track.TRANSFER)
    assert [span.name for span in transfers] == [f"0F{m} to 1" for m in range(NUM_MICROBATCHES)]
    assert {span.size_bytes for span in transfers} == {16}
    assert spans(timeline, 1, Track.TRANSFER) == []


def test_tasks_last_as_long_as_they_compute(timeline):
    assert min(span.start_s for span in timeline.spans) == 0
    for actor in range(2):
        times_s = sorted(span.time_s for span in spans(timeline, actor, Track.COMPUTE))
        # The bound is wide, for a busy machine: without the end of the task, a span would be as long as the step.
        assert TIME_S <= times_s[0] <= times_s[len(times_s) // 2] < max(3 * TIME_S, 0.6 * timeline.time_s)


def test_nothing_starts_before_what_it_needs(timeline):
    for actor in range(2):
        tasks = spans(timeline, actor, Track.COMPUTE)
        for before, after in itertools.pairwise(tasks):
            assert before.end_s <= after.start_s
    for made, moved, used in zip(
        spans(timeline, 0, Track.COMPUTE),
        spans(timeline, 0, Track.TRANSFER),
        spans(timeline, 1, Track.COMPUTE),
        strict=True,
    ):
        assert made.end_s <= moved.start_s <= moved.end_s <= used.start_s


def test_actors_overlap(timeline):
    assert timeline.time_s >= (NUM_MICROBATCHES + 1) * TIME_S
    tasks = [spans(timeline, actor, Track.COMPUTE) for actor in range(2)]
    # Not by the clock, which a busy machine slows.
    together = [
        (one, other)
        for one, other in itertools.product(*tasks)
        if one.start_s < other.end_s and other.start_s < one.end_s
    ]
    assert together


def test_steps_that_are_not_measured_have_no_timeline():
    builder = ProgramBuilder(1)
    engine = InProcessEngine(make_meshes(1))
    run = engine.execute(engine.load(builder.build()), [[]])
    with pytest.raises(AssertionError, match="pass measure=True"):
        run.timeline()


def test_watchers_note_the_end_where_the_actor_runs_ahead():
    """Does as other platforms do, with dispatches that come before the results."""
    builder = ProgramBuilder(2)
    type_ = array_type(4)
    call = builder.call(lambda x: x + 1, type_, name="f")
    first, second = builder.actors
    (out,) = first.run("0F0", call, first.input(type_, 0))
    first.send(1, out)
    (received,) = second.receive(0, type_)
    second.run("1F0", call, received)

    class Result:
        def __init__(self):
            self.is_ready = threading.Event()

        def block_until_ready(self):
            self.is_ready.wait()

    results = [Result() for _ in range(3)]
    clocks = [ActorClock(waits_in_place=False) for _ in range(2)]
    clocks[0].start(0)
    clocks[0].watch_run(0, results[0])
    clocks[0].start(1)
    clocks[0].watch_send(1, [results[1]])
    clocks[1].start(1)
    clocks[1].watch_run(1, results[2])
    # All were dispatched; now they are ready, one after the other.
    for result, (clock, position) in zip(results, ((0, 0), (0, 1), (1, 1)), strict=True):
        result.is_ready.set()
        while position not in clocks[clock].ends:
            time.sleep(0.001)
    for clock in clocks:
        clock.close()
    task, transfer, user = make_timeline(builder.build(), clocks).spans
    assert (task.name, transfer.name, user.name) == ("0F0", "0F0 to 1", "1F0")
    assert task.end_s == transfer.start_s
    assert transfer.end_s == user.start_s
    assert user.end_s > user.start_s


def test_bytes_of_types():
    assert type_bytes(array_type(3, 4)) == 48
    assert type_bytes(array_type(3, dtype="bfloat16")) == 6
    assert type_bytes(array_type(dtype="key<fry>")) == 8
