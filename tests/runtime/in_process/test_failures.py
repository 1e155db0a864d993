"""A task that fails is named, the others are released, and the engine goes on."""

import gc
import threading
import time
import weakref

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxquard.errors import DeletedArrayError, MeshError, TaskFailed
from jaxquard.runtime.in_process.engine import InProcessEngine
from jaxquard.runtime.step_state import summarise
from jaxquard.runtime.transfer import place
from tests.runtime.build_program import ProgramBuilder, array_type, make_meshes

pytestmark = pytest.mark.filterwarnings("error")


def make_check(num_devices):
    """Doubles its input; fails if it finds a number that is 13 on any device."""

    def check(x):
        if (np.asarray(x) == 13).any():
            raise ValueError("found a 13")
        return x

    def body(x):
        return 2 * jax.pure_callback(check, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    mesh = AbstractMesh((num_devices,), ("data",), axis_types=(AxisType.Auto,))
    return jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"))


def make_relay(num_actors, num_devices, num_microbatches=3, donated=False):
    """Sends each microbatch through all actors, which keep a sum of what they see."""
    type_ = array_type(4, spec=[["data"]])
    builder = ProgramBuilder(num_actors)
    check = builder.call(make_check(num_devices), type_, name="check", specs=[type_.spec])
    add = builder.call(
        lambda total, x: total + x, type_, type_, name="add", donated=(0,) if donated else (), specs=[type_.spec]
    )
    for number, actor in enumerate(builder.actors):
        total = actor.input(type_, number)
        start = total
        for microbatch in range(num_microbatches):
            if number == 0:
                x = actor.input(type_, num_actors + microbatch)
            else:
                (x,) = actor.receive(number - 1, type_)
            (y,) = actor.run(f"{number}F{microbatch}", check, x)
            if number + 1 < num_actors:
                actor.send(number + 1, y)
            (new,) = actor.run(f"{number}A{microbatch}", add, total, y)
            if total != start and not donated:
                actor.free(total)
            total = new
            actor.free(y)
            if number:
                actor.free(x)
        actor.output(total, number)
    return builder.build(donated_args=tuple(range(num_actors)) if donated else ())


class Relay:
    def __init__(self, num_actors, num_devices, donated=False):
        self.engine = InProcessEngine(make_meshes(num_actors, num_devices))
        self.loaded = self.engine.load(make_relay(num_actors, num_devices, donated=donated))
        self.shardings = self.loaded.input_shardings

    def place(self, value, actor):
        return place(np.full(4, value, np.float32), self.shardings[actor][0])

    def run(self, *values, totals=None):
        num_actors = len(self.shardings)
        totals = totals or [self.place(0, actor) for actor in range(num_actors)]
        inputs = [[total] for total in totals]
        inputs[0] += [self.place(value, 0) for value in values]
        return self.engine.execute(self.loaded, inputs)


@pytest.mark.thin(2)
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize(
    ("values", "task", "actor"), [((13, 1, 1), "0F0", 0), ((1, 6.5, 1), "1F1", 1), ((1, 1, 3.25), "2F2", 2)]
)
def test_the_task_and_actor_are_named(num_devices, values, task, actor):
    relay = Relay(3, num_devices)
    run = relay.run(*values)
    with pytest.raises(TaskFailed) as caught:
        run.wait()
    message = f"task {task} failed on actor {actor}: ValueError: found a 13. "
    assert str(caught.value) == message + "Nothing was donated: the inputs are intact."
    assert "found a 13" in str(caught.value.__cause__)
    for result in run.results():
        with pytest.raises(TaskFailed, match=f"task {task} failed on actor {actor}"):
            np.asarray(result)
        with pytest.raises(TaskFailed):
            result.block_until_ready()
    good = relay.run(1, 2, 3)
    assert [float(np.asarray(result)[0]) for result in good.results()] == [12, 24, 48]


def test_of_two_failures_the_first_in_order_is_reported():
    relay = Relay(3, 1)
    with pytest.raises(TaskFailed, match="task 0F1 failed on actor 0"):
        relay.run(6.5, 13, 1).wait()


@pytest.mark.parametrize("num_devices", [1, 2])
def test_steps_queued_on_a_failed_one_fail_with_its_error(num_devices):
    relay = Relay(3, num_devices)
    bad = relay.run(1, 6.5, 1)
    after = relay.run(1, 1, 1, totals=[result.cell(actor=i) for i, result in enumerate(bad.results())])
    last = relay.run(1, 1, 1, totals=[result.cell(actor=i) for i, result in enumerate(after.results())])
    good = relay.run(1, 1, 1)
    with pytest.raises(TaskFailed, match="task 1F1 failed on actor 1"):
        last.wait()
    with pytest.raises(TaskFailed, match="task 1F1 failed on actor 1"):
        after.wait()
    good.wait()


@pytest.mark.parametrize("num_devices", [1, 2])
def test_consumed_state_is_reported(num_devices):
    relay = Relay(2, num_devices, donated=True)
    first = relay.run(1, 1, 1)
    run = relay.run(1, 6.5, 1, totals=[result.cell(actor=i) for i, result in enumerate(first.results())])
    with pytest.raises(TaskFailed, match="The donated state was consumed; restore it from a checkpoint"):
        run.wait()
    with pytest.raises(DeletedArrayError):
        np.asarray(first.results()[1])


@pytest.mark.parametrize("num_devices", [1, 2])
def test_state_that_no_task_has_touched_is_given_back(num_devices):
    relay = Relay(2, num_devices, donated=True)
    first = relay.run(1, 1, 1)
    totals = [result.cell(actor=i) for i, result in enumerate(first.results())]
    with pytest.raises(TaskFailed, match="Nothing was donated: the inputs are intact"):
        relay.run(13, 1, 1, totals=totals).wait()
    assert [float(np.asarray(result)[0]) for result in first.results()] == [6, 12]
    again = relay.run(1, 1, 1, totals=totals)
    assert [float(np.asarray(result)[0]) for result in again.results()] == [12, 24]


def test_a_deleted_array_as_input_is_a_failed_task():
    relay = Relay(1, 1)
    total = relay.place(0, 0)
    total.delete()
    with pytest.raises(TaskFailed, match="on actor 0: Array has been deleted"):
        relay.run(1, 1, 1, totals=[total]).wait()
    relay.run(1, 1, 1).wait()


def test_closing_releases_everyone():
    entered, gate = threading.Event(), threading.Event()

    def wait(x):
        entered.set()
        gate.wait(60)
        return x

    builder = ProgramBuilder(2)
    type_ = array_type(4)
    call = builder.call(lambda x: jax.pure_callback(wait, x, x), type_, name="wait")
    first, second = builder.actors
    (once,) = first.run("0F0", call, first.input(type_, 0))
    (twice,) = first.run("0F1", call, once)
    first.send(1, twice)
    first.free(once, twice)
    (received,) = second.receive(0, type_)
    second.output(received, 0)
    engine = InProcessEngine(make_meshes(2))
    loaded = engine.load(builder.build())
    run = engine.execute(loaded, [[place(np.ones(4, np.float32), loaded.input_shardings[0][0])], []])
    assert entered.wait(60)
    closer = threading.Thread(target=engine.close)
    closer.start()
    while not engine.actors[0].feeder.is_halting:
        time.sleep(0.001)
    gate.set()
    closer.join(60)
    assert not closer.is_alive()
    with pytest.raises(TaskFailed, match="task 0F1 failed on actor 0: the mesh was closed"):
        run.wait()
    with pytest.raises(MeshError):
        engine.execute(loaded, [[], []])


def test_an_error_does_not_keep_buffers():
    relay = Relay(1, 1)
    total = relay.place(0, 0)
    buffer = weakref.ref(total)
    run = relay.run(1, 13, 1, totals=[total])
    with pytest.raises(TaskFailed) as caught:
        run.wait()
    del total
    gc.collect()
    assert caught.value.__cause__.__traceback__ is not None
    assert buffer() is None


def test_errors_are_reported_in_one_line():
    assert summarise(ValueError("")) == "ValueError"
    assert summarise(ValueError("one.\ntwo")) == "one"
    text = "INTERNAL: CpuCallback error: Traceback (most recent call last):\n  File x\nValueError: boom"
    assert summarise(RuntimeError(text)) == "ValueError: boom"
