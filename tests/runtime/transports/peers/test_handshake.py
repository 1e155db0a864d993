"""The handshake: both sides know the secret, or neither gets anywhere."""

import contextlib
import socket
import threading

import pytest

from jaxquard.runtime.transports.peers.connection import PeerConnection
from jaxquard.runtime.transports.peers.handshake import HandshakeError, shake_as_dialer, shake_as_listener
from jaxquard.runtime.transports.peers.secret import new_mesh_secret

SECRET, OTHER = new_mesh_secret(), new_mesh_secret()


def shake(listener_secret, dialer_secret, *, target=0):
    """The outcomes of both sides: the actor that the listener sees, or an error."""
    here, there = socket.socketpair()
    outcomes = {}

    def run(name, function, end):
        end.settimeout(10)
        connection = PeerConnection(end)
        try:
            outcomes[name] = function(connection)
        except OSError as error:
            outcomes[name] = error
        finally:
            connection.close()

    sides = [
        ("listener", lambda end: shake_as_listener(end, actor=0, secret=listener_secret), here),
        ("dialer", lambda end: shake_as_dialer(end, source=7, target=target, secret=dialer_secret), there),
    ]
    threads = [threading.Thread(target=run, args=side) for side in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcomes["listener"], outcomes["dialer"]


def test_two_that_know_the_secret_meet():
    assert shake(SECRET, SECRET) == (7, None)


def test_one_that_knows_another_secret_is_refused():
    listener, dialer = shake(SECRET, OTHER)
    assert isinstance(listener, HandshakeError)
    assert "does not know the secret of this mesh" in str(listener)
    assert isinstance(dialer, OSError)


def test_one_that_takes_it_for_another_actor_is_refused():
    listener, dialer = shake(SECRET, SECRET, target=3)
    assert str(listener) == "a process of actor 7 took this one, of actor 0, for one of actor 3"
    assert isinstance(dialer, OSError)


def converse(peer, *pieces):
    """Plays one side by sending pieces; returns all that `peer`, the other side, sent, and how it ended."""
    here, there = socket.socketpair()
    outcome = []

    def run():
        there.settimeout(10)
        try:
            peer(PeerConnection(there))
            outcome.append(None)
        except OSError as error:
            outcome.append(error)
        there.close()

    thread = threading.Thread(target=run)
    thread.start()
    received = b""
    # It may hang up before it has read everything.
    with here, contextlib.suppress(OSError):
        for piece in pieces:
            here.sendall(piece)
        here.shutdown(socket.SHUT_WR)
        while piece := here.recv(4096):
            received += piece
    thread.join(30)
    return received, outcome[0]


def record_dialer():
    """Records all that a peer sends to somebody who plays the listener."""
    question = b"jaxq\x00\x01\r\n" + bytes(32)
    said, _ = converse(lambda end: shake_as_dialer(end, source=7, target=0, secret=SECRET), question)
    return said


def test_a_handshake_cannot_be_repeated():
    said = record_dialer()
    assert len(said) == 72
    _, error = converse(lambda end: shake_as_listener(end, actor=0, secret=SECRET), said)
    assert isinstance(error, HandshakeError)


def test_a_proof_sent_back_is_no_proof():
    """Who plays the listener to a dialer has its proof, and can only send that back."""
    said = record_dialer()
    question = b"jaxq\x00\x01\r\n" + bytes(32)
    _, error = converse(lambda end: shake_as_dialer(end, source=7, target=0, secret=SECRET), question, said[-32:])
    assert isinstance(error, HandshakeError)
    assert "listens at the address of actor 0 does not know the secret" in str(error)


@pytest.mark.parametrize(
    "pieces", [(), (b"jaxq",), (b"HTTP/1.1 400 Bad Request\r\n" * 4,), (bytes(8),), (bytes(1 << 16),)]
)
def test_a_dialer_ends_whatever_it_finds(pieces):
    _, error = converse(lambda end: shake_as_dialer(end, source=7, target=0, secret=SECRET), *pieces)
    assert isinstance(error, OSError)
