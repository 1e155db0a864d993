"""The transports by name."""

import jax

from jaxquard.errors import MeshError
from jaxquard.runtime.transports.base import BaseTransport
from jaxquard.runtime.transports.collective.transport import CollectiveTransport
from jaxquard.runtime.transports.protocol import Transport
from jaxquard.runtime.transports.transfer.transport import TransferTransport

TRANSPORTS: dict[str, type[BaseTransport]] = {"transfer": TransferTransport, "collective": CollectiveTransport}


def open_transport(name: str, *, actor: int, ip: str) -> Transport:
    """Opens the transport of this process, which its peers reach at this address of its host.

    Raises:
        MeshError: if there is no such transport.
    """
    if name not in TRANSPORTS:
        raise MeshError(f"there is no transport {name!r}. There are: {', '.join(TRANSPORTS)}.")
    return TRANSPORTS[name](jax.local_devices(), actor=actor, host=ip)
