"""The transports by name."""

import ipaddress

import jax

from jaxquard.errors import MeshError
from jaxquard.runtime.transports.base import BaseTransport
from jaxquard.runtime.transports.collective.transport import CollectiveTransport
from jaxquard.runtime.transports.peers.secret import MeshSecret
from jaxquard.runtime.transports.protocol import Transport
from jaxquard.runtime.transports.stream.transport import StreamTransport
from jaxquard.runtime.transports.transfer.transport import TransferTransport

TRANSPORTS: dict[str, type[BaseTransport]] = {
    "stream": StreamTransport,
    "transfer": TransferTransport,
    "collective": CollectiveTransport,
}


def open_transport(name: str, *, actor: int, ip: str, secret: MeshSecret, folder: str | None = None) -> Transport:
    """Opens the transport of this process, which its peers reach at this address of its host.

    With an address of loopback all peers are on this host, and sockets in a folder take the place of ports.

    Raises:
        MeshError: if there is no such transport.
    """
    if name not in TRANSPORTS:
        raise MeshError(f"there is no transport {name!r}. There are: {', '.join(TRANSPORTS)}.")
    return TRANSPORTS[name](
        jax.local_devices(),
        actor=actor,
        secret=secret,
        host=ip,
        on_network=not ipaddress.ip_address(ip).is_loopback,
        folder=folder,
    )
