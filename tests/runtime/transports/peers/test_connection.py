"""The settings of a connection once it is used."""

import socket

from jaxquard.runtime.transports.peers.connection import PeerConnection


def test_a_connection_between_hosts_is_kept_alive():
    """A firewall forgets connections that are silent for long."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as here,
        listener.accept()[0],
    ):
        PeerConnection(here).begin_use()
        assert here.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
