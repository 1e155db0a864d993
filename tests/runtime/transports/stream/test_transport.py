"""The stream transport among strangers, and with a peer that breaks the rules; here all ends are in one process."""

import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transfer import as_data
from jaxquard.runtime.transports.peers.links import PeerLinks
from jaxquard.runtime.transports.peers.secret import new_mesh_secret
from jaxquard.runtime.transports.protocol import Channel, TransferError, TransferStopped
from jaxquard.runtime.transports.pull.numbers import offer_number
from jaxquard.runtime.transports.stream.frames import MessageBytes
from jaxquard.runtime.transports.stream.server import _DATA, _FAILED, _FRAME
from jaxquard.runtime.transports.stream.transport import StreamTransport
from tests.runtime.transports.peers.strangers import besiege, connect
from tests.slow_but_for import slow_but_for

SECRET = new_mesh_secret()
TYPES = tuple(map(ArrayType.parse, ("float32[1000]{x}", "bfloat16[3,4]", "key<fry>[2]")))
CHANNEL = Channel(source=0, target=1, messages=(TYPES,) * 3, orders=(0, 1, 2), may_donate=(True,) * 3)


def mesh_of(actor):
    return Mesh(np.array(jax.devices()[2 * actor : 2 * actor + 2]), ("x",))


@pytest.fixture(params=[False, True], ids=["unix", "TLS"])
def transports(request, tmp_path):
    found = [
        StreamTransport(
            jax.devices()[2 * actor : 2 * actor + 2],
            actor=actor,
            secret=SECRET,
            on_network=request.param,
            folder=str(tmp_path),
        )
        for actor in range(2)
    ]
    yield found
    for transport in found:
        transport.close()


def reach(transport):
    return transport.address.partition(",unix:")[0]


def connect_all(transports):
    for actor, transport in enumerate(transports):
        others = {peer: [reach(other)] for peer, other in enumerate(transports) if peer != actor}
        transport.connect({actor: [transport.address], **others})


def values(seed):
    draw = np.random.default_rng(seed)
    mesh = mesh_of(0)
    spread = lambda value, *spec: jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))  # noqa: E731
    return [
        spread(draw.normal(size=1000).astype(np.float32), "x"),
        spread(draw.normal(size=(3, 4)).astype(jax.numpy.bfloat16)),
        spread(jax.random.split(jax.random.key(seed))),
    ]


def run_step(transports, step):
    """Sends three messages, and compares every bit of what arrives."""
    sender = transports[0].open_sender(CHANNEL, program_id=1, mesh=mesh_of(0))
    receiver = transports[1].open_receiver(CHANNEL, program_id=1, mesh=mesh_of(1))
    receiver.begin(step)
    for number in range(3):
        sent = sender.send(step, number, values(number))
        received = receiver.recv(step, number, should_stop=lambda: False)
        for before, after in zip(values(number), received, strict=True):
            assert as_data(before).tobytes() == as_data(after).tobytes()
        wait_for(sent.is_taken)


def wait_for(condition):
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


@pytest.mark.parametrize("count", slow_but_for([100, 5000], [100]))
def test_the_step_after_a_siege_is_right(transports, count):
    sieges = [
        threading.Thread(target=besiege, args=(reach(transport),), kwargs={"count": count, "seed": actor})
        for actor, transport in enumerate(transports)
    ]
    for siege in sieges:
        siege.start()
    for siege in sieges:
        siege.join(600)
    connect_all(transports)
    run_step(transports, 1)


def test_a_transport_that_is_connected_listens_no_more(transports, tmp_path):
    connect_all(transports)
    wait_for(lambda: not list(tmp_path.iterdir()))
    for transport in transports:
        wait_for(lambda transport=transport: _refuses(reach(transport)))
    run_step(transports, 1)


def _refuses(address):
    try:
        connect(address, timeout_s=1).close()
    except OSError:
        return True
    return False


def test_a_peer_with_another_secret_is_a_lost_peer(transports, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxquard.runtime.transports.peers.dial._LIMIT_S", 0.1)
    stranger = StreamTransport(jax.devices()[:2], actor=0, secret=new_mesh_secret(), folder=str(tmp_path))
    target = transports[1]
    target.connect({1: [target.address], 0: [stranger.address]})
    receiver = target.open_receiver(CHANNEL, program_id=1, mesh=mesh_of(1))
    with pytest.raises(TransferError, match="from actor 0 to actor 1 did not arrive: the connection to actor 0"):
        receiver.begin(1)
    stranger.close()


def test_a_closed_transport_says_so(transports):
    connect_all(transports)
    sender = transports[0].open_sender(CHANNEL, program_id=1, mesh=mesh_of(0))
    receiver = transports[1].open_receiver(CHANNEL, program_id=1, mesh=mesh_of(1))
    receiver.begin(1)
    transports[0].close()
    with pytest.raises(TransferStopped, match="nothing can be sent: the transport is closed"):
        sender.send(1, 0, values(0))
    with pytest.raises(TransferError, match="the connection to actor 0 has ended"):
        receiver.recv(1, 0, should_stop=lambda: False)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (lambda number, size: _FRAME.pack(_DATA, number, size + 1), "bytes that were not asked for"),
        (lambda number, size: _FRAME.pack(_DATA, number, 2**63), "bytes that were not asked for"),
        (lambda number, size: _FRAME.pack(_DATA, number + 1, size), "bytes that were not asked for"),
        (lambda number, size: _FRAME.pack(9, number, size), "a frame of the unknown kind 9"),
        (lambda number, size: _FRAME.pack(_DATA, number, size) + b"too few", "has ended"),
        (lambda number, size: _FRAME.pack(_FAILED, number, 0), "its sender could not compute it"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_a_lost_peer(tmp_path, frame, reason):
    """Frames of a process that knows the secret are checked too: no size that it names is ever allocated."""
    target = StreamTransport(jax.devices()[2:4], actor=1, secret=SECRET, folder=str(tmp_path))
    rogue = PeerLinks(0, secret=SECRET, host=None, folder=str(tmp_path), read=_read_all, on_lost=lambda *_: None)
    target.connect({1: [target.address], 0: [rogue.address]})
    rogue.connect({1: target.address})
    receiver = target.open_receiver(CHANNEL, program_id=1, mesh=mesh_of(1))
    receiver.begin(1)
    size = receiver._forms[0].size_bytes
    rogue.write(1, frame(offer_number(SECRET, 1, 1, CHANNEL, 0), size))
    if reason == "has ended":
        rogue.close()
    with pytest.raises(TransferError, match=reason):
        receiver.recv(1, 0, should_stop=lambda: False)
    rogue.close()
    target.close()


def test_a_message_that_finds_no_memory_is_not_its_senders_fault(transports, monkeypatch):
    connect_all(transports)
    sender = transports[0].open_sender(CHANNEL, program_id=1, mesh=mesh_of(0))
    receiver = transports[1].open_receiver(CHANNEL, program_id=1, mesh=mesh_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(MessageBytes, "join", _find_no_memory)
        receiver.begin(1)
        sender.send(1, 0, values(0))
        with pytest.raises(TransferError, match="could not be put on the devices here: RESOURCE_EXHAUSTED"):
            receiver.recv(1, 0, should_stop=lambda: False)
    run_step(transports, 2)


def _find_no_memory(form, shards):
    raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")


def _read_all(peer, connection):
    while True:
        connection.read(1)
