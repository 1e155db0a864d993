"""Two processes prove to each other that they know the secret of the mesh, and say who they are.

    listener -> dialer    magic, 32 random bytes
    dialer -> listener    32 random bytes, its actor, the listener's actor, proof
    listener -> dialer    proof

A proof is an HMAC of everything said so far and of the role of who says it: neither can be repeated, nor sent back to
whoever made it. All pieces have a fixed size, so a stranger can make nobody allocate or wait for more than that.
"""

import hmac
import os
import struct
from collections.abc import Callable

from jaxquard.runtime.transports.peers.connection import PeerConnection
from jaxquard.runtime.transports.peers.secret import MeshSecret

_MAGIC = b"jaxq\x00\x01\r\n"
_NONCE_BYTES = _PROOF_BYTES = 32
_ACTORS = struct.Struct("<II")


class HandshakeError(ConnectionError):
    """The other side does not know the secret of this mesh, or is not who it should be."""


def shake_as_listener(
    connection: PeerConnection, *, actor: int, secret: MeshSecret, on_proof: Callable[[], None] = lambda: None
) -> int:
    """Returns the actor at the other end.

    Args:
        on_proof: called when the other end has proved that it knows the secret, before it hears that it is admitted; an
            `OSError` of it refuses the other end.

    Raises:
        HandshakeError: if the other end does not know the secret, or wants another actor.
        OSError: if it is gone, or takes too long.
    """
    nonce = os.urandom(_NONCE_BYTES)
    connection.write(_MAGIC + nonce)
    said = connection.read(_NONCE_BYTES + _ACTORS.size)
    proof = connection.read(_PROOF_BYTES)
    transcript = nonce + said
    source, target = _ACTORS.unpack(said[_NONCE_BYTES:])
    if not hmac.compare_digest(proof, _proof(secret, b"dialer", transcript)):
        raise HandshakeError("a process that does not know the secret of this mesh wanted to connect")
    if target != actor:
        raise HandshakeError(f"a process of actor {source} took this one, of actor {actor}, for one of actor {target}")
    on_proof()
    connection.write(_proof(secret, b"listener", transcript + proof))
    return source


def shake_as_dialer(connection: PeerConnection, *, source: int, target: int, secret: MeshSecret) -> None:
    """Makes sure that the other end is a process of actor `target`.

    Raises:
        HandshakeError: if it does not know the secret.
        OSError: if it is gone, or takes too long.
    """
    hello = connection.read(len(_MAGIC) + _NONCE_BYTES)
    if not hello.startswith(_MAGIC):
        raise HandshakeError(f"something else than actor {target} listens at its address")
    said = os.urandom(_NONCE_BYTES) + _ACTORS.pack(source, target)
    transcript = hello[len(_MAGIC) :] + said
    proof = _proof(secret, b"dialer", transcript)
    connection.write(said + proof)
    if not hmac.compare_digest(connection.read(_PROOF_BYTES), _proof(secret, b"listener", transcript + proof)):
        raise HandshakeError(f"what listens at the address of actor {target} does not know the secret of this mesh")


def _proof(secret: MeshSecret, role: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret.key, b"jaxquard handshake, " + role + b"\0" + transcript, "sha256")
