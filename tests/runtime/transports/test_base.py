"""The base of all transports: waits that can be given up, and ends of channels, here on a transport in memory."""

import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transports.base import BaseReceiver, BaseSender, BaseTransport, wait_until
from jaxquard.runtime.transports.open_transport import TRANSPORTS
from jaxquard.runtime.transports.peers.secret import new_mesh_secret
from jaxquard.runtime.transports.protocol import AlwaysTaken, Channel, TransferStopped


def test_what_is_done_is_not_waited_for():
    assert wait_until(lambda: True, should_stop=lambda: True)


def test_it_ends_soon_after_it_is_done():
    done = threading.Event()
    start_s = time.perf_counter()
    threading.Timer(0.05, done.set).start()
    assert wait_until(done.is_set, should_stop=lambda: False)
    assert 0.04 < time.perf_counter() - start_s < 60


def test_it_ends_when_asked_to_stop():
    end_s = time.perf_counter() + 0.02
    assert not wait_until(lambda: False, should_stop=lambda: time.perf_counter() > end_s)


class Taken:
    def is_taken(self):
        return True


class MemorySender(BaseSender):
    box: dict

    def _post(self, step, number, parts):
        self.box[step, number] = parts

    def _confirm(self, step, number):
        return Taken()


class MemoryReceiver(BaseReceiver):
    box: dict

    def begin(self, step):
        self.received = []

    def _take(self, step, number, should_stop):
        if self.messages[number].parts:
            self._wait(step, number, lambda: (step, number) in self.box, should_stop)
        return self.box.pop((step, number), [])

    def _after_receipt(self, step, number):
        self.received.append(number)


class MemoryTransport(BaseTransport):
    survives_loss = True
    address = "memory"

    def close(self):
        self.connections.clear()

    def _listen(self, host):
        self.connections, self.box = {}, {}

    def _connect(self, peers):
        self.connections.update(peers)

    def _make_sender(self, channel, **options):
        return self._with_box(MemorySender(channel, **options))

    def _make_receiver(self, channel, **options):
        return self._with_box(MemoryReceiver(channel, **options))

    def _with_box(self, end):
        end.box = self.box
        return end


MESSAGES = tuple((ArrayType.parse(text),) for text in ("float32[4]", "float32[0]", "int32[2]"))
CHANNEL = Channel(source=0, target=1, messages=MESSAGES, orders=(1, 2, 5), may_donate=(True, True, False))
ARRAYS = (np.arange(4, dtype=np.float32), np.zeros(0, np.float32), np.array([7, 8], np.int32))


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:1]), ("x",))


@pytest.fixture
def transport():
    return MemoryTransport(jax.devices()[:1], actor=0, secret=new_mesh_secret())


def send_all(transport, mesh, step=3):
    sender = transport.open_sender(CHANNEL, program_id=1, mesh=mesh)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return [sender.send(step, number, [jax.device_put(array, sharding)]) for number, array in enumerate(ARRAYS)]


def test_only_messages_that_may_be_donated_are_confirmed(transport, mesh):
    donated, empty, kept = send_all(transport, mesh)
    assert isinstance(donated, Taken)
    assert isinstance(empty, AlwaysTaken), "a message of no bytes is not posted"
    assert kept is None
    assert set(transport.box) == {(3, 0), (3, 2)}


def test_messages_arrive_and_are_counted(transport, mesh):
    send_all(transport, mesh)
    receiver = transport.open_receiver(CHANNEL, program_id=1, mesh=mesh)
    receiver.begin(3)
    for number, expected in enumerate(ARRAYS):
        (array,) = receiver.recv(3, number, should_stop=lambda: False)
        np.testing.assert_array_equal(array, expected)
    assert receiver.received == [0, 1, 2]
    report = transport.report()
    assert (report.num_sent, report.num_received, report.waiting) == ({1: 3}, {0: 3}, ())


def test_a_wait_is_reported_and_can_be_given_up(transport, mesh):
    receiver = transport.open_receiver(CHANNEL, program_id=1, mesh=mesh)
    receiver.begin(3)
    seen = []

    def should_stop():
        seen.extend(transport.report().waiting)
        return True

    with pytest.raises(TransferStopped, match=r"stopped waiting for message 0 \(float32\[4\]\) of step 3 from actor 0"):
        receiver.recv(3, 0, should_stop=should_stop)
    assert [(status.peer, status.step, status.number) for status in seen] == [(0, 3, 0)]
    assert transport.report().waiting == ()
    assert transport.report().num_received == {0: 0}


def test_it_connects_to_processes_of_equal_rank(transport):
    transport.connect({0: ("another", "memory"), 1: ("first", "second"), 2: ("third", "fourth")})
    assert transport.connections == {1: "second", 2: "fourth"}


def test_every_transport_stands_on_the_base():
    assert all(issubclass(transport, BaseTransport) for transport in TRANSPORTS.values())
