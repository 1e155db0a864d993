import gc
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxquard.errors import DeletedArrayError, MeshError, ProgramError
from jaxquard.runtime.in_process.engine import InProcessEngine
from jaxquard.runtime.result_cell import ResultCell
from jaxquard.runtime.transfer import place
from tests.runtime.build_program import ProgramBuilder, array_type, make_meshes
from tests.runtime.mlp_pipeline import MlpPipeline

vector = array_type(4)


def double(x):
    return 2 * x


def add(x, y):
    return x + y


def run_pipeline(pipeline, meshes, num_steps=1):
    engine = InProcessEngine(meshes)
    loaded = engine.load(pipeline.program())
    inputs = pipeline.inputs(loaded, place)
    for _ in range(num_steps):
        results = engine.execute(loaded, inputs).results()
    found = jax.device_get(results)
    engine.close()
    return found


@pytest.mark.parametrize(("num_stages", "num_devices"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)])
def test_pipeline_gives_the_numbers_of_a_plain_loop(num_stages, num_devices):
    pipeline = MlpPipeline(num_stages=num_stages, num_microbatches=5, axis="data")
    found = run_pipeline(pipeline, make_meshes(num_stages, num_devices))
    for one, other in zip(found, pipeline.expected(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_feeding_together_gives_the_same_numbers_as_apart():
    pipeline = MlpPipeline(num_microbatches=3)
    engine = InProcessEngine(make_meshes(4))
    loaded = engine.load(pipeline.program())
    inputs = pipeline.inputs(loaded, place)
    apart = jax.device_get(engine.execute(loaded, inputs).results())
    for times_s in loaded.pace.fastest_s:
        times_s[:] = [0.0] * len(times_s)
    assert loaded.pace.is_together()
    together = [engine.execute(loaded, inputs) for _ in range(3)]
    for times_s in loaded.pace.fastest_s:
        times_s[:] = [1.0] * len(times_s)
    assert not loaded.pace.is_together()
    again = engine.execute(loaded, inputs)
    for run in [*together, again]:
        for one, other in zip(jax.device_get(run.results()), apart, strict=True):
            np.testing.assert_array_equal(one, other)


def test_runs_on_devices_of_one_client():
    pipeline = MlpPipeline(num_microbatches=4, axis="data")
    devices = jax.devices("cpu")
    meshes = [Mesh(np.array(devices[2 * i : 2 * i + 2]), ("data",), axis_types=(AxisType.Auto,)) for i in range(4)]
    for one, other in zip(run_pipeline(pipeline, meshes, num_steps=3), pipeline.expected(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_actors_share_devices(num_devices):
    pipeline = MlpPipeline(num_microbatches=4, axis="data")
    meshes = make_meshes(1, num_devices) * 4
    for one, other in zip(run_pipeline(pipeline, meshes, num_steps=3), pipeline.expected(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def make_chain(num_actors, num_microbatches, function, type_):
    """Each actor applies the function to each microbatch and sends it on."""
    builder = ProgramBuilder(num_actors)
    call = builder.call(function, type_, name="work", specs=[type_.spec])
    for number, actor in enumerate(builder.actors):
        for microbatch in range(num_microbatches):
            slot = actor.input(type_, microbatch) if number == 0 else actor.receive(number - 1, type_)[0]
            (out,) = actor.run(f"{number}F{microbatch}", call, slot)
            if number + 1 < num_actors:
                actor.send(number + 1, out)
                actor.free(out)
            else:
                actor.output(out, microbatch)
            if number:
                actor.free(slot)
    return builder.build()


def make_callback(callback, mesh):
    """A function that calls back once per device, then adds one."""

    def body(x):
        return jax.pure_callback(callback, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    return jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_actors_compute_at_the_same_time(num_devices):
    num_actors, num_microbatches, time_s = 4, 12, 0.02
    lock, looked, crowded, inside, crowds = threading.Lock(), threading.Event(), threading.Event(), [], []

    def wait(x):
        with lock:
            inside.append(x)
            crowds.append(len(inside))
            if len(inside) > 2 * num_devices:
                crowded.set()
        looked.wait(60)
        crowded.wait(0.3)  # A busy machine wakes the others late.
        time.sleep(time_s)
        with lock:
            inside.pop()
        return x

    mesh = AbstractMesh((num_devices,), ("data",), axis_types=(AxisType.Auto,))
    type_ = array_type(4, spec=[["data"]])
    program = make_chain(num_actors, num_microbatches, make_callback(wait, mesh), type_)
    engine = InProcessEngine(make_meshes(num_actors, num_devices))
    loaded = engine.load(program)
    inputs = [[place(np.zeros(4, np.float32), s) for s in shardings] for shardings in loaded.input_shardings]
    ideal_s = (num_microbatches + num_actors - 1) * time_s
    times_s, returned = [], []
    for _ in range(2):
        looked.clear()
        start_s = time.perf_counter()
        run = engine.execute(loaded, inputs)
        returned.append(not run.is_done())
        looked.set()
        run.wait()
        times_s.append(time.perf_counter() - start_s)
    assert all(returned), "execute returns at once"
    assert ideal_s <= min(times_s)
    # Not by the clock, which a busy machine slows: a device waits here once at a time, so these are of several actors.
    assert max(crowds) > 2 * num_devices
    np.testing.assert_array_equal(run.results()[3], np.full(4, num_actors, np.float32))


def make_counter(donated=True):
    """A step that adds its second argument to its first, which it donates."""
    builder = ProgramBuilder(1)
    call = builder.call(add, vector, vector, donated=(0,) if donated else ())
    (actor,) = builder.actors
    (total,) = actor.run("add", call, actor.input(vector, 0), actor.input(vector, 1))
    actor.output(total, 0)
    return builder.build(donated_args=(0,) if donated else ())


@pytest.fixture
def counter():
    engine = InProcessEngine(make_meshes(1))
    loaded = engine.load(make_counter())
    one = place(np.ones(4, np.float32), loaded.input_shardings[0][1])
    start = place(np.zeros(4, np.float32), loaded.input_shardings[0][0])
    return engine, loaded, start, one


def test_steps_are_queued_on_results_of_steps_under_way(counter):
    engine, loaded, total, one = counter
    (total,) = engine.execute(loaded, [[total, one]]).results()
    for _ in range(50):
        (total,) = engine.execute(loaded, [[total.cell(actor=0), one]]).results()
    np.testing.assert_array_equal(total, np.full(4, 51.0))


def test_donated_cells_are_deleted_at_once(counter):
    engine, loaded, start, one = counter
    (first,) = engine.execute(loaded, [[start, one]]).results()
    (second,) = engine.execute(loaded, [[first.cell(actor=0), one]]).results()
    assert first.is_deleted()
    assert not second.is_deleted()
    with pytest.raises(DeletedArrayError, match="was donated to a distributed step"):
        np.asarray(first)
    with pytest.raises(DeletedArrayError, match="was donated"):
        engine.execute(loaded, [[first.cell(actor=0), one]])
    np.testing.assert_array_equal(second, np.full(4, 2.0))


def test_one_array_cannot_be_donated_and_passed_again(counter):
    engine, loaded, start, one = counter
    (total,) = engine.execute(loaded, [[start, one]]).results()
    cell = total.cell(actor=0)
    with pytest.raises(DeletedArrayError, match="arguments 0 and 1 are the same array"):
        engine.execute(loaded, [[cell, cell]])
    np.testing.assert_array_equal(total, np.ones(4))


def test_donation_reuses_memory(counter):
    engine, loaded, start, one = counter
    (total,) = engine.execute(loaded, [[start, one]]).results()
    pointer = total.cell(actor=0).wait_ready().unsafe_buffer_pointer()
    (total,) = engine.execute(loaded, [[total.cell(actor=0), one]]).results()
    assert total.cell(actor=0).wait_ready().unsafe_buffer_pointer() == pointer


def test_inputs_come_from_any_actor():
    builder = ProgramBuilder(2)
    call = builder.call(double, vector)
    for number, actor in enumerate(builder.actors):
        (out,) = actor.run(f"double.{number}", call, actor.input(vector, 0))
        actor.output(out, number)
    engine = InProcessEngine(make_meshes(2))
    loaded = engine.load(builder.build())
    start = place(np.ones(4, np.float32), loaded.input_shardings[0][0])
    (one, _) = engine.execute(loaded, [[start], [start]]).results()
    for_both = one.cell(actor=0)
    for result in engine.execute(loaded, [[for_both], [for_both]]).results():
        np.testing.assert_array_equal(result, np.full(4, 4.0))


def test_a_donated_cell_that_two_actors_read_is_copied():
    builder = ProgramBuilder(2)
    call = builder.call(double, vector, donated=(0,))
    for number, actor in enumerate(builder.actors):
        (out,) = actor.run(f"double.{number}", call, actor.input(vector, 0))
        actor.output(out, number)
    engine = InProcessEngine(make_meshes(2))
    loaded = engine.load(builder.build(donated_args=(0,)))
    for _ in range(20):
        buffer = place(np.ones(4, np.float32), loaded.input_shardings[0][0])
        cell = ResultCell(actor=0, buffer=buffer)
        for result in engine.execute(loaded, [[cell], [cell]]).results():
            np.testing.assert_array_equal(result, np.full(4, 2.0))
        assert cell.is_deleted()


def test_arguments_and_constants_that_are_results_are_copies():
    builder = ProgramBuilder(1)
    (actor,) = builder.actors
    actor.output(actor.input(vector, 0), 0)
    actor.output(actor.constant(vector, 0), 1)
    engine = InProcessEngine(make_meshes(1))
    loaded = engine.load(builder.build(constants=(np.arange(4, dtype=np.float32),)))
    given = place(np.ones(4, np.float32), loaded.input_shardings[0][0])
    passed, constant = engine.execute(loaded, [[given]]).results()
    passed.cell(actor=0).wait_ready().delete()
    constant.cell(actor=0).wait_ready().delete()
    np.testing.assert_array_equal(given, np.ones(4))
    _, constant = engine.execute(loaded, [[given]]).results()
    np.testing.assert_array_equal(constant, np.arange(4))


def test_a_slot_may_be_two_results():
    builder = ProgramBuilder(1)
    (actor,) = builder.actors
    (out,) = actor.run("double", builder.call(double, vector), actor.input(vector, 0))
    actor.output(out, 0)
    actor.output(out, 1)
    engine = InProcessEngine(make_meshes(1))
    loaded = engine.load(builder.build())
    first, second = engine.execute(loaded, [[place(np.ones(4, np.float32), loaded.input_shardings[0][0])]]).results()
    np.testing.assert_array_equal(first, np.full(4, 2.0))
    np.testing.assert_array_equal(second, np.full(4, 2.0))


def test_parts_and_copies_are_put_together():
    builder = ProgramBuilder(2)
    call = builder.call(double, array_type(2, 3))
    long = builder.call(double, array_type(1, 3))
    first, second = builder.actors
    (a,) = first.run("a", call, first.input(array_type(2, 3), 0, part=0))
    (b,) = second.run("b", long, second.input(array_type(1, 3), 0, part=1))
    first.output(a, 0, part=0)
    first.send(1, a)
    (copy,) = second.receive(0, array_type(2, 3))
    second.output(copy, 0, part=0)
    second.output(b, 0, part=1)
    engine = InProcessEngine(make_meshes(2))
    loaded = engine.load(builder.build())
    inputs = [
        [place(np.ones(item.shape, np.float32), loaded.input_shardings[actor][0])]
        for actor, item in enumerate((array_type(2, 3), array_type(1, 3)))
    ]
    (result,) = engine.execute(loaded, inputs).results()
    assert result.shape == (3, 3)
    assert [(p.start, p.stop, p.actors) for p in result.placement] == [(0, 2, (0, 1)), (2, 3, (1,))]
    np.testing.assert_array_equal(result, np.full((3, 3), 2.0))


def test_receives_that_are_used_late_and_out_of_order():
    builder = ProgramBuilder(2)
    call = builder.call(double, vector)
    first, second = builder.actors
    slot = first.input(vector, 0)
    for number in range(3):
        (slot,) = first.run(f"a{number}", call, slot)
        first.send(1, slot)
        first.output(slot, number)
    received = [second.receive(0, vector)[0] for _ in range(3)]
    for number in (2, 0, 1):
        (out,) = second.run(f"b{number}", call, received[number])
        second.output(out, 3 + number)
        second.free(received[number])
    engine = InProcessEngine(make_meshes(2))
    loaded = engine.load(builder.build())
    results = engine.execute(loaded, [[place(np.ones(4, np.float32), loaded.input_shardings[0][0])], []]).results()
    assert [float(np.asarray(result)[0]) for result in results] == [2, 4, 8, 4, 8, 16]


def test_constraints_on_an_abstract_mesh_mean_the_actors_own():
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def constrained(x):
        return jax.lax.with_sharding_constraint(2 * x, NamedSharding(mesh, PartitionSpec("data")))

    program = make_chain(2, 1, constrained, array_type(4, spec=[["data"]]))
    engine = InProcessEngine(make_meshes(2, 2))
    loaded = engine.load(program)
    inputs = [[place(np.ones(4, np.float32), s) for s in shardings] for shardings in loaded.input_shardings]
    (result,) = engine.execute(loaded, inputs).results()
    np.testing.assert_array_equal(result, np.full(4, 4.0))
    assert result.cell(actor=1).wait_ready().sharding.mesh == engine.meshes[1]


def test_a_step_may_change_the_sharding_on_the_way():
    rows, columns = array_type(4, 4, spec=[["data"]]), array_type(4, 4, spec=[[], ["data"]])
    builder = ProgramBuilder(2)
    first, second = builder.actors
    (out,) = first.run("a", builder.call(double, rows, specs=[rows.spec]), first.input(rows, 0))
    first.send(1, out)
    first.free(out)
    (received,) = second.receive(0, columns)
    (out,) = second.run("b", builder.call(double, columns, specs=[columns.spec]), received)
    second.free(received)
    second.output(out, 0)
    engine = InProcessEngine(make_meshes(2, 2))
    loaded = engine.load(builder.build())
    value = np.arange(16, dtype=np.float32).reshape(4, 4)
    (result,) = engine.execute(loaded, [[place(value, loaded.input_shardings[0][0])], []]).results()
    np.testing.assert_array_equal(result, 4 * value)


def test_calls_without_inputs_or_outputs():
    seen = []

    def make():
        return jnp.ones(4)

    def look(x):
        jax.debug.callback(seen.append, x)

    builder = ProgramBuilder(1)
    (actor,) = builder.actors
    (slot,) = actor.run("make", builder.call(make))
    actor.run("look", builder.call(look, vector), slot)
    actor.output(slot, 0)
    engine = InProcessEngine(make_meshes(1))
    run = engine.execute(engine.load(builder.build()), [[]])
    run.wait()
    np.testing.assert_array_equal(seen[0], np.ones(4))


def test_donations_without_an_output_do_not_warn():
    def total(x, y):
        return x.sum() + y.sum()

    builder = ProgramBuilder(1)
    (actor,) = builder.actors
    call = builder.call(total, vector, vector, donated=(0, 1))
    (out,) = actor.run("total", call, actor.input(vector, 0), actor.input(vector, 1))
    actor.output(out, 0)
    engine = InProcessEngine(make_meshes(1))
    loaded = engine.load(builder.build(donated_args=(0, 1)))
    ones = [place(np.ones(4, np.float32), sharding) for sharding in loaded.input_shardings[0]]
    assert float(engine.execute(loaded, [ones]).results()[0]) == 8


def test_progress_is_reported():
    seen = []
    engine = InProcessEngine(make_meshes(2))
    engine.load(MlpPipeline(num_stages=2).program(), on_progress=lambda *args: seen.append(args))
    assert [total for _, total, _ in seen] == [6, 6, 6]
    assert seen[-1][0] == 6
    assert {name for *_, name in seen} == {"forward", "backward", "zeros"}


def test_a_program_for_other_actors_is_refused():
    with pytest.raises(MeshError, match="the program is for 2 actors, but the mesh has 1"):
        InProcessEngine(make_meshes(1)).load(MlpPipeline(num_stages=2).program())


def test_programs_are_checked():
    builder = ProgramBuilder(1)
    builder.actors[0].free(builder.actors[0].input(vector, 0))
    builder.actors[0].free(0)
    with pytest.raises(ProgramError, match="s0 is used after it was freed"):
        InProcessEngine(make_meshes(1)).load(builder.build())


def actor_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("jaxquard actor")}


def test_threads_start_with_the_first_step_and_end_with_close():
    before = actor_threads()
    engine = InProcessEngine(make_meshes(1))
    loaded = engine.load(make_counter(donated=False))
    assert actor_threads() <= before
    one = place(np.ones(4, np.float32), loaded.input_shardings[0][0])
    (total,) = engine.execute(loaded, [[one, one]]).results()
    np.testing.assert_array_equal(total, np.full(4, 2.0))
    assert len(actor_threads() - before) == 1
    engine.close()
    engine.close()
    assert actor_threads() <= before
    np.testing.assert_array_equal(total, np.full(4, 2.0))
    with pytest.raises(MeshError, match="the mesh is closed"):
        engine.execute(loaded, [[one, one]])


def test_threads_end_when_the_engine_is_collected():
    before = actor_threads()
    engine = InProcessEngine(make_meshes(2))
    loaded = engine.load(MlpPipeline(num_stages=2).program())
    run = engine.execute(loaded, MlpPipeline(num_stages=2).inputs(loaded, place))
    reference = weakref.ref(engine)
    del engine
    run.wait()
    end_s = time.monotonic() + 60
    while not (reference() is None and actor_threads() <= before) and time.monotonic() < end_s:
        time.sleep(0.02)
        gc.collect()
    assert reference() is None
    assert actor_threads() <= before


def test_nothing_keeps_buffers_alive(counter):
    engine, loaded, start, one = counter
    run = engine.execute(loaded, [[start, one]])
    run.wait()
    buffer = weakref.ref(run.cells[0][0].wait_ready())
    gc.disable()
    try:
        assert buffer() is not None
        del run
        engine.execute(loaded, [[place(np.zeros(4, np.float32), start.sharding), one]]).wait()
        assert buffer() is None
    finally:
        gc.enable()


def test_a_call_waits_when_many_steps_are_queued():
    """Each queued step holds its inputs and results, so that a loop without any wait must not run ahead of all."""
    release = threading.Event()

    def wait(x):
        release.wait(60)
        return x

    builder = ProgramBuilder(1)
    type_ = array_type(4)
    call = builder.call(lambda x: jax.pure_callback(wait, x, x), type_, name="wait")
    (actor,) = builder.actors
    (out,) = actor.run("0F0", call, actor.input(type_, 0))
    actor.output(out, 0)
    engine = InProcessEngine(make_meshes(1))
    loaded = engine.load(builder.build())
    inputs = [[place(np.ones(4, np.float32), loaded.input_shardings[0][0])]]
    queued = []
    caller = threading.Thread(target=lambda: [queued.append(engine.execute(loaded, inputs)) for _ in range(10)])
    caller.start()
    end_s = time.monotonic() + 60
    while len(queued) < 4 and time.monotonic() < end_s:
        time.sleep(0.01)
    caller.join(0.2)
    assert caller.is_alive()
    assert len(queued) == 4
    release.set()
    caller.join(60)
    assert len(queued) == 10
    queued[-1].wait()
