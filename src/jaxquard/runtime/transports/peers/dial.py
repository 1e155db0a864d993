"""Connects to another process of the mesh: at its socket if it is on this host, else at its port, under TLS."""

import socket
import ssl
import time

from jaxquard.runtime.transports.peers.connection import PeerConnection, wrap_tls
from jaxquard.runtime.transports.peers.handshake import HandshakeError, shake_as_dialer
from jaxquard.runtime.transports.peers.listener import HANDSHAKE_S, socket_path
from jaxquard.runtime.transports.peers.secret import MeshSecret

_LIMIT_S = 20.0
_PAUSE_S = 0.05


def dial(address: str, *, source: int, target: int, secret: MeshSecret) -> PeerConnection:
    """Connects to the process of actor `target` at an address that its `PeerListener` gave.

    Tries again if the connection breaks during the handshake: a listener that strangers besiege drops some connections.
    Not so if it takes too long: then the peer is frozen or lost, which the heartbeats will show.

    Raises:
        OSError: if nobody is there, or it is not the peer.
    """
    end_s = time.monotonic() + _LIMIT_S
    while True:
        end = _open(address)
        try:
            if end.family != socket.AF_UNIX:
                end = _begin_tls(end, secret)
            connection = PeerConnection(end)
            shake_as_dialer(connection, source=source, target=target, secret=secret)
            connection.begin_use()
            return connection
        except OSError as error:
            end.close()
            if isinstance(error, HandshakeError | TimeoutError) or time.monotonic() > end_s:
                raise
            time.sleep(_PAUSE_S)


def _begin_tls(plain: socket.socket, secret: MeshSecret) -> socket.socket:
    wrapped = wrap_tls(plain, secret.tls_context(is_server=False), is_server=False)
    try:
        wrapped.do_handshake()
    except ssl.SSLCertVerificationError as error:
        wrapped.close()
        raise HandshakeError("what listens there does not have the certificate of this mesh") from error
    except BaseException:
        wrapped.close()
        raise
    return wrapped


def _open(address: str) -> socket.socket:
    """Connects to the socket if it is on this host, else to the port."""
    network, _, here = address.partition("unix:")
    if here:
        try:
            return _open_here(here)
        except OSError:
            # Another host, or another container on this one.
            if not network:
                raise
    host, port = network.removeprefix("tls:").removesuffix(",").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=HANDSHAKE_S)


def _open_here(folder: str) -> socket.socket:
    plain = socket.socket(socket.AF_UNIX)
    try:
        with socket_path(folder) as path:
            plain.connect(path)
        plain.settimeout(HANDSHAKE_S)
    except BaseException:
        plain.close()
        raise
    return plain
