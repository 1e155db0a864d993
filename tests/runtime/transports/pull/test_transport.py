"""The promises of transports whose messages are pulled: they outlive a lost peer, memory is bounded and freed."""

import gc
import time

import pytest

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transports.peers.secret import new_mesh_secret
from jaxquard.runtime.transports.protocol import TransferError, TransferStopped
from jaxquard.runtime.transports.pull.numbers import offer_number
from tests.runtime.transports.jobs import load, make_pattern, make_value, run_steps
from tests.runtime.transports.worker_group import WorkerGroup

pytestmark = pytest.mark.ray

# 64 MB on each of two devices: more than 32 MB go back to the system when they are freed, which can be seen.
LARGE = (ArrayType.parse("float32[16777216]"),)
TLS = pytest.param("stream over TLS", marks=pytest.mark.slow)
SMALL = (ArrayType.parse("float32[8]{x}"),)


@pytest.fixture(scope="module", params=["stream", TLS, pytest.param("transfer", marks=pytest.mark.slow)])
def group(request):
    """Two processes that have no `jax.distributed`."""
    group = WorkerGroup(num_processes=2, processes_per_cluster=0)
    group.transport = request.param
    yield group
    group.close()


def _resident_megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def _abandon(worker, step):
    """Actor 0 offers 4 messages; actor 1 asks for what its window allows, and takes none. Both wait in vain, too."""
    _, mesh, senders, receivers = worker.store["program 1"]
    gc.collect()  # JAX makes arrays from callbacks with cycles around them.
    before = _resident_megabytes()
    for receiver in receivers.values():
        receiver.begin(step)
    for sender in senders.values() if worker.actor == 0 else ():
        for number in range(4):
            sender.send(step, number, [make_value(LARGE[0], mesh, number)])
    time.sleep(1.0)  # What is asked for may arrive by then.
    end_s = time.perf_counter() + 60
    while worker.actor == 0 and _resident_megabytes() - before < 150 and time.perf_counter() < end_s:
        time.sleep(0.01)
    gc.collect()
    return _resident_megabytes() - before


def _close(worker):
    """The offers of actor 0 are freed. Actor 1 keeps nothing of a message, of which a shard has 64 MB."""
    before = _resident_megabytes()
    worker.transport.close()
    end_s = time.perf_counter() + 60
    while _resident_megabytes() > before + (-150 if worker.actor == 0 else 30):
        assert time.perf_counter() < end_s, "not freed"
        time.sleep(0.01)
        gc.collect()


def _use_closed(worker):
    _, mesh, senders, receivers = worker.store["program 1"]
    if worker.actor == 0:
        with pytest.raises(TransferStopped, match="nothing can be sent: the transport is closed"):
            senders[1].send(9, 0, [make_value(LARGE[0], mesh, 0)])
    with pytest.raises(TransferStopped, match=r"nothing can be received from actor \d: the transport is closed"):
        receivers[1 - worker.actor].begin(9)


@pytest.mark.thin(3)
def test_memory_is_bounded_and_freed(group):
    """Pulls that wait would hold the offers of both sides (`drain`), so there are some of each kind."""
    group.open(window_messages=4, window_bytes=70 * 2**20)
    pattern = make_pattern([(0, 1, LARGE)] * 4 + [(1, 0, SMALL)] * 6, num_actors=2, may_donate=True)
    load(group, pattern, (2,), program_id=1)
    group.run(run_steps, [(1, 1)])
    offered, received = group.run(_abandon, 2)
    assert offered > 150
    assert received < 140
    group.run(_close)
    group.run(_use_closed)


def test_a_large_message_is_asked_for_though_it_exceeds_the_window(group):
    group.open(window_messages=1, window_bytes=1)
    load(group, make_pattern([(0, 1, LARGE)] * 3, num_actors=2), (2,), program_id=1)
    group.run(run_steps, [(1, 1)])


def test_numbers_of_offers_differ():
    (channel,) = make_pattern([(0, 1, SMALL)] * 3, num_actors=2).channels
    (other,) = make_pattern([(1, 0, SMALL)] * 3, num_actors=2).channels
    secrets = [new_mesh_secret(), new_mesh_secret()]
    numbers = {
        offer_number(secret, program_id, step, way, number, purpose)
        for secret in secrets
        for program_id in range(3)
        for step in range(20)
        for way in (channel, other)
        for number in range(3)
        for purpose in range(2)
    }
    assert len(numbers) == 2 * 3 * 20 * 2 * 3 * 2
    assert all(0 <= number < 2**64 for number in numbers)


def _receive_from_the_dead(worker, step, waiting):
    _, _, _, receivers = worker.store["program 2"]
    receivers[0].begin(step)
    with pytest.raises(TransferError) as caught:
        receivers[0].recv(step, 0, should_stop=lambda: bool(waiting.touch()))
    end_s = time.perf_counter() + 0.2
    # A new receive may fail at once or stay pending for ever, but it can be given up.
    with pytest.raises((TransferError, TransferStopped)):
        _receive(receivers[0], step + 1, lambda: time.perf_counter() > end_s)
    return str(caught.value)


def _receive(receiver, step, should_stop):
    receiver.begin(step)
    receiver.recv(step, 0, should_stop=should_stop)


def test_a_peer_that_is_killed(group, tmp_path):
    group.open()
    load(group, make_pattern([(0, 1, SMALL), (1, 0, SMALL)], num_actors=2), (2,), program_id=2)
    group.run(run_steps, [(2, 1)])
    group.start(1, _receive_from_the_dead, 2, tmp_path / "waiting")
    while not (tmp_path / "waiting").exists():
        time.sleep(0.01)
    group.processes[0].kill()
    text, failure = group.read(1)
    assert not failure
    assert text.startswith("message 0 (float32[8]{x}) of step 2 from actor 0 to actor 1 did not arrive: ")
