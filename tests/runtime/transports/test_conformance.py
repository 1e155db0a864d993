"""The promises of every transport (`protocol`), checked between real processes."""

import random
import time
from itertools import count

import jax
import numpy as np
import pytest

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transports.layout import LayoutError, compare_layouts
from jaxquard.runtime.transports.protocol import TransferStopped
from tests.runtime.transports.jobs import check_value, load, make_pattern, make_value, never, open_channels, run_steps
from tests.runtime.transports.worker_group import NUM_PROCESSES, WorkerGroup
from tests.slow_but_for import slow_but_for

pytestmark = pytest.mark.ray

NUMBERS = count(1)
TLS = pytest.param("stream over TLS", marks=pytest.mark.slow)
SMALL = (ArrayType.parse("float32[8]{x}"),)


@pytest.fixture(scope="module")
def groups():
    """For each number of processes that one `jax.distributed` joins: the processes."""
    groups = {}
    yield groups
    for group in groups.values():
        group.close()


@pytest.fixture(scope="module", params=["stream", TLS, "transfer", "collective"])
def group(request, groups):
    # Collectives between actors need all processes in one; otherwise only those of one actor are.
    count = NUM_PROCESSES if request.param == "collective" else 2
    if count not in groups:
        groups[count] = WorkerGroup(processes_per_cluster=count)
    groups[count].transport = request.param
    return groups[count]


def types(*texts):
    return tuple(map(ArrayType.parse, texts))


def one_way(*messages, may_donate=False):
    return make_pattern([(0, 1, message) for message in messages], num_actors=NUM_PROCESSES, may_donate=may_donate)


def play(group, pattern, mesh_shape, *, num_steps=2):
    program_id = next(NUMBERS)
    load(group, pattern, mesh_shape, program_id=program_id)
    return group.run(run_steps, [(program_id, next(NUMBERS)) for _ in range(num_steps)])


def load_one(group, pattern):
    program_id = next(NUMBERS)
    load(group, pattern, (2,), program_id=program_id)
    return program_id


def test_values_of_all_kinds_on_two_devices(group):
    group.open()
    messages = [
        types("float32[4,6]{x,-}", "bfloat16[4,6]{-,x}", "float32[4,6]"),
        types("int8[2]{x}", "bool[6]{x}", "bool[]", "int32[3]"),
        types("key<fry>[4]{x}", "key<fry>[]", "key<rbg>[2,2]{-,x}"),
        types("float32[]", "float32[0,4]", "bfloat16[2,0]{x,-}", "key<fry>[0]"),
        types("float32[0]"),
        (),
    ]
    pattern = make_pattern(
        [(source, target, message) for message in messages for source, target in ((0, 1), (1, 0), (2, 3))],
        num_actors=NUM_PROCESSES,
    )
    play(group, pattern, (2,))


@pytest.mark.parametrize("mesh_shape", [(2, 2), (1,)])
def test_other_meshes(group, mesh_shape):
    group.open()
    texts = ["float32[4,8]{x,y}", "float32[4,8]{y,x}", "float32[8]{x+y}", "float32[8]{y}"]
    if mesh_shape == (1,):
        texts = ["float32[4,8]{x,-}", "float32[4,8]", "float32[]"]
    play(group, make_pattern([(0, 1, types(*texts)), (1, 2, types(*texts))], num_actors=NUM_PROCESSES), mesh_shape)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_actors_of_two_processes(group, num_devices):
    group.open(processes_per_actor=2)
    message = types("float32[8,4]{x,-}", "float32[4,8]{-,x}", "bfloat16[3]", "key<fry>[4]{x}", "float32[0]", "bool[]")
    pattern = make_pattern([(0, 1, message), (1, 0, message)] * 3, num_actors=2, may_donate=True)
    play(group, pattern, (2 * num_devices,))


def test_many_messages_through_a_small_window(group):
    group.open(window_messages=2, window_bytes=100)
    play(group, one_way(*[SMALL] * 250), (2,), num_steps=1)


def test_one_f_one_b(group):
    """Activations up, gradients down, all actors busy at once."""
    group.open()
    num_microbatches, events = 8, []
    for clock in range(2 * (num_microbatches + NUM_PROCESSES)):
        for actor in range(NUM_PROCESSES):
            forward, backward = clock - actor, clock - (2 * NUM_PROCESSES - 1 - actor)
            if actor + 1 < NUM_PROCESSES and forward % 2 == 0 and 0 <= forward < 2 * num_microbatches:
                events.append((actor, actor + 1, SMALL))
            if actor > 0 and backward % 2 == 0 and 0 <= backward < 2 * num_microbatches:
                events.append((actor, actor - 1, types("bfloat16[4,4]{x,-}", "float32[]")))
    play(group, make_pattern(events, num_actors=NUM_PROCESSES), (2,))


def test_programs_and_steps_take_turns(group):
    group.open()
    programs = []
    for message in (SMALL, types("int32[4]")):
        events = [(0, 1, message), (1, 2, message), (2, 0, message)]
        programs.append(load_one(group, make_pattern(events, num_actors=NUM_PROCESSES)))
    first, second = programs
    group.run(run_steps, [(program, next(NUMBERS)) for program in (first, second, second, first, second, first)])


@pytest.mark.parametrize("seed", slow_but_for(range(4), [0, 1]))
def test_random_patterns(group, seed):
    group.open(window_messages=3, window_bytes=64)
    generator = random.Random(seed)
    kinds = [SMALL, types("float32[2,2]"), types("int8[]", "bool[4]{x}"), types("float32[16]{x}", "key<fry>[2]"), ()]
    events = []
    for _ in range(40):
        source, target = generator.sample(range(NUM_PROCESSES), 2)
        events.append((source, target, generator.choice(kinds)))
    pattern = make_pattern(events, num_actors=NUM_PROCESSES, may_donate=generator.random() < 0.5, delay=generator)
    play(group, pattern, (2,), num_steps=3)


# Donation.


def _send_and_donate(worker, program_id, step, looked):
    """Gives the buffers of messages away: when they were taken, and, of a copy, when they were not."""
    _, mesh, senders, receivers = worker.store[f"program {program_id}"]
    (type_,) = types("float32[4096]{x}")
    overwrite = jax.jit(lambda x: x * 0 - 7, donate_argnums=0)
    overwrite(make_value(type_, mesh, 0))
    if worker.actor == 0:
        values = [make_value(type_, mesh, (step, number)) + 0 for number in range(10)]
        sent = [senders[1].send(step, number, [value]) for number, value in enumerate(values[:5])]
        early = [worker.transport.report().num_sent, [one.is_taken() for one in sent]]
        looked.touch()
        copies = [value if one.is_taken() else value.copy() for value, one in zip(values, sent, strict=False)]
        jax.block_until_ready([overwrite(copy) for copy in copies])
        sent += [senders[1].send(step, number, [values[number]]) for number in range(5, 10)]
        _wait_for(lambda: all(one.is_taken() for one in sent))
        jax.block_until_ready([overwrite(value) for value in values[5:]])
        assert all(value.is_deleted() for value in values[5:])
        return early
    if worker.actor == 1:
        receivers[0].begin(step)
        _wait_for(looked.exists)
        for number in range(10):
            (value,) = receivers[0].recv(step, number, should_stop=never)
            check_value(value, type_, mesh, (step, number))
    return None


def _wait_for(is_done):
    end_s = time.perf_counter() + 60
    while not is_done():
        assert time.perf_counter() < end_s
        time.sleep(1e-3)


def test_donated_buffers_arrive_whole(group, tmp_path):
    group.open(window_messages=2)
    program_id = load_one(group, one_way(*[types("float32[4096]{x}")] * 10, may_donate=True))
    num_sent, taken = group.run(_send_and_donate, program_id, next(NUMBERS), tmp_path / "looked")[0]
    assert num_sent[1] % 10 == 5
    assert not all(taken)


def test_without_donation_nothing_is_confirmed(group):
    group.open()
    program_id = load_one(group, one_way(SMALL, ()))
    assert group.run(_send_all, program_id, next(NUMBERS))[0] == [None, None]


def _send_all(worker, program_id, step):
    pattern, mesh, senders, receivers = worker.store[f"program {program_id}"]
    (channel,) = pattern.channels
    if worker.actor == 0:
        return [
            senders[1].send(step, number, [make_value(type_, mesh, 0) for type_ in message])
            for number, message in enumerate(channel.messages)
        ]
    if worker.actor == 1:
        receivers[0].begin(step)
        for number in range(len(channel.messages)):
            receivers[0].recv(step, number, should_stop=never)
    return None


# Values that are not computed yet.


def _send_unfinished(worker, program_id, step):
    _, mesh, senders, receivers = worker.store[f"program {program_id}"]
    (type_,) = SMALL

    def slow(x):
        time.sleep(0.3)
        return np.asarray(x)

    if worker.actor == 0:
        value = make_value(type_, mesh, step)
        wait = jax.jit(lambda x: jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
        start_s = time.perf_counter()
        senders[1].send(step, 0, [jax.device_put(wait(value), value.sharding)])
        return time.perf_counter() - start_s
    if worker.actor == 1:
        receivers[0].begin(step)
        check_value(*receivers[0].recv(step, 0, should_stop=never), type_, mesh, step)
    return None


def test_a_value_that_is_still_computed(group):
    group.open()
    program_id = load_one(group, one_way(SMALL))
    group.run(_send_unfinished, program_id, next(NUMBERS))


# Giving up.


def _wait_in_vain(worker, program_id, step):
    _, _, _, receivers = worker.store[f"program {program_id}"]
    if worker.actor != 1:
        return None
    receivers[0].begin(step)
    reports = []

    def should_stop():
        reports.append(worker.transport.report())
        return any(mark.age_s > 0.05 for mark in reports[-1].waiting)

    with pytest.raises(TransferStopped) as caught:
        receivers[0].recv(step, 0, should_stop=should_stop)
    return str(caught.value), reports[-1], worker.transport.report()


def test_a_wait_can_be_given_up(group):
    group.open()
    program_id, step = load_one(group, one_way(SMALL)), next(NUMBERS)
    text, during, after = group.run(_wait_in_vain, program_id, step)[1]
    assert text == f"stopped waiting for message 0 (float32[8]{{x}}) of step {step} from actor 0 to actor 1."
    (mark,) = during.waiting
    assert (mark.peer, mark.program_id, mark.step, mark.number) == (0, program_id, step, 0)
    assert 0.05 < mark.age_s < 60
    assert after.waiting == ()


def _abandon(worker, program_id, step):
    """Actor 0 fails after its first message; the others stop where they wait."""
    _, mesh, senders, receivers = worker.store[f"program {program_id}"]
    for receiver in receivers.values():
        receiver.begin(step)
    if worker.actor == 0:
        senders[1].send(step, 0, [make_value(SMALL[0], mesh, "stale")])
    if worker.actor == 1:
        senders[2].send(step, 0, [make_value(SMALL[0], mesh, "stale")])
        receivers[0].recv(step, 0, should_stop=never)
        _stop_soon(receivers[0], step, 1)
    if worker.actor == 2:
        time.sleep(0.1)
        _stop_soon(receivers[0], step, 0)


def _stop_soon(receiver, step, number):
    end_s = time.perf_counter() + 0.1
    with pytest.raises(TransferStopped):
        receiver.recv(step, number, should_stop=lambda: time.perf_counter() > end_s)


def test_an_abandoned_step_does_not_meet_the_next(group):
    group.open()
    events = [(0, 1, SMALL), (1, 2, SMALL), (0, 2, SMALL), (0, 1, SMALL), (1, 2, SMALL), (2, 0, SMALL)]
    program_id = load_one(group, make_pattern(events, num_actors=NUM_PROCESSES))
    group.run(run_steps, [(program_id, next(NUMBERS))])
    for _ in range(2):
        group.run(_abandon, program_id, next(NUMBERS))
        group.run(run_steps, [(program_id, next(NUMBERS)) for _ in range(3)])


def test_a_transport_can_be_opened_anew_after_an_abandoned_step(group):
    events = [(0, 1, SMALL), (1, 2, SMALL), (0, 2, SMALL), (0, 1, SMALL)]
    pattern = make_pattern(events, num_actors=NUM_PROCESSES)
    for window_messages in (1, 5):
        group.open(window_messages=window_messages)
        program_id = load_one(group, pattern)
        group.run(_abandon, program_id, next(NUMBERS))
    group.open(window_messages=6)
    play(group, pattern, (2,))


# Layouts.


def test_ends_that_disagree_are_found(group):
    group.open()
    layouts = {}
    for text in ("float32[4,4]{x,-}", "float32[4,4]{-,x}"):
        program_id = next(NUMBERS)
        layouts[text] = group.run(open_channels, one_way(SMALL, types("int32[]", text)), (2,), program_id)
    by_rows, by_columns = (layouts[text][process][0, 1] for process, text in enumerate(layouts))
    compare_layouts(by_rows, layouts["float32[4,4]{x,-}"][1][0, 1])
    with pytest.raises(LayoutError, match=r"message 1 from actor 0 to actor 1, array 1: on device 0 of the mesh"):
        compare_layouts(by_rows, by_columns)


def _send_wrong(worker, program_id, step):
    _, mesh, senders, _ = worker.store[f"program {program_id}"]
    texts = []
    if worker.actor == 0:
        for wrong in types("float32[8]", "float32[4]{x}", "int32[8]{x}"):
            with pytest.raises(LayoutError) as caught:
                senders[1].send(step, 0, [make_value(wrong, mesh, 0)])
            texts.append(str(caught.value))
        with pytest.raises(LayoutError, match=r"has 1 arrays, not 0"):
            senders[1].send(step, 0, [])
    return texts


def test_an_array_with_another_layout_is_not_sent(group):
    group.open()
    program_id = load_one(group, one_way(SMALL))
    for text in group.run(_send_wrong, program_id, next(NUMBERS))[0]:
        assert text.startswith("a message was to carry float32[8]{x}, but got ")
        assert text.endswith("Give it the receiver's sharding before sending.")
