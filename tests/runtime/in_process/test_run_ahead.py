"""Actors that dispatch ahead of their computations, as on GPU and TPU, played on two-device CPU actors.

They differ in three things: tasks leave a witness of their own, many may be in flight, and transfers are
asynchronous `jax.device_put`s, through which a failure travels on to other actors. All are devices of one
client, whose threads are as many as the devices: on a small client, dispatches wait for a free thread.
"""

import threading

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxquard.errors import TaskFailed
from jaxquard.ir.timeline import Track
from jaxquard.runtime import transfer
from jaxquard.runtime.in_process import engine as engine_module
from jaxquard.runtime.in_process.engine import InProcessEngine
from jaxquard.runtime.program import timings
from jaxquard.runtime.program.actor import InFlight
from jaxquard.runtime.program.compile_calls import Site
from jaxquard.runtime.transfer import place
from tests.runtime.build_program import array_type
from tests.runtime.in_process.test_engine import make_callback, make_chain
from tests.runtime.in_process.test_failures import make_relay


def make_engine(monkeypatch, num_actors, shares_devices=False):
    monkeypatch.setattr(transfer, "_is_viewable", lambda *args: False)
    monkeypatch.setattr(engine_module, "guard_launches", lambda executable, lock: executable)
    devices = np.array(jax.devices("cpu")[: 2 * num_actors]).reshape(num_actors, 2)
    meshes = [
        Mesh(devices[0 if shares_devices else actor], ("data",), axis_types=(AxisType.Auto,))
        for actor in range(num_actors)
    ]
    engine = InProcessEngine(meshes)
    engine._sites = tuple(Site(mesh=mesh, has_witness=True) for mesh in meshes)
    for actor in engine.actors:
        actor.is_in_place = False
        actor.feeder.in_flight = InFlight(limit=32)
    return engine


def place_all(loaded, *values):
    values = iter(values)
    return [
        [place(np.full(4, next(values), np.float32), sharding) for sharding in shardings]
        for shardings in loaded.input_shardings
    ]


@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("shares_devices", [False, True])
def test_numbers_are_right(monkeypatch, shares_devices, donated):
    engine = make_engine(monkeypatch, 3, shares_devices)
    loaded = engine.load(make_relay(3, 2, donated=donated))
    results = engine.execute(loaded, place_all(loaded, 0, 1, 2, 3, 0, 0)).results()
    for _ in range(10):
        inputs = place_all(loaded, 0, 1, 2, 3, 0, 0)
        for actor, result in enumerate(results):
            inputs[actor][0] = result.cell(actor=actor)
        results = engine.execute(loaded, inputs).results()
    assert [float(np.asarray(result)[0]) for result in results] == [11 * 12, 11 * 24, 11 * 48]


@pytest.mark.thin(3)
@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("shares_devices", [False, True])
@pytest.mark.parametrize(
    ("values", "task", "actor"), [((13, 1, 1), "0F0", 0), ((1, 6.5, 1), "1F1", 1), ((1, 1, 3.25), "2F2", 2)]
)
def test_the_task_that_failed_first_is_named(monkeypatch, values, task, actor, shares_devices, donated):
    engine = make_engine(monkeypatch, 3, shares_devices)
    loaded = engine.load(make_relay(3, 2, donated=donated))
    bad = engine.execute(loaded, place_all(loaded, 0, *values, 0, 0))
    good = engine.execute(loaded, place_all(loaded, 0, 1, 2, 3, 0, 0))
    with pytest.raises(TaskFailed, match=f"task {task} failed on actor {actor}: ValueError: found a 13"):
        bad.wait()
    for result in bad.results():
        with pytest.raises(TaskFailed, match=f"task {task} failed on actor {actor}"):
            np.asarray(result)
    assert [float(np.asarray(result)[0]) for result in good.results()] == [12, 24, 48]


def test_the_thread_runs_ahead_and_the_watchers_time(monkeypatch):
    gate = threading.Event()

    def wait(x):
        assert gate.wait(20)
        return x

    monkeypatch.setattr(engine_module, "ActorClock", lambda **_: timings.ActorClock(waits_in_place=False))
    engine = make_engine(monkeypatch, 1)
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    loaded = engine.load(make_chain(1, 3, make_callback(wait, mesh), array_type(4, spec=[["data"]])))
    run = engine.execute(loaded, place_all(loaded, 1, 1, 1), measure=True)
    run.cells[0][-1].wait_filled()
    assert not gate.is_set()
    assert not run.is_done()
    gate.set()
    spans = run.timeline().spans
    assert [span.name for span in spans if span.track is Track.COMPUTE] == ["0F0", "0F1", "0F2"]
