"""Parses addresses of Ray clusters, and checks that one answers before Ray tries for half a minute."""

import os
import socket
from dataclasses import dataclass

from jaxquard.errors import MeshError

_CONNECT_S = 3.0
_ANSWER_S = 2.0
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The preface and the empty settings with which every HTTP/2 connection begins, and so every one of gRPC."""
_SETTINGS_FRAME = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RayAddress:
    """The address of a cluster: `ray://host:10001` for Ray's client server, `host:6379` for its control server."""

    host: str
    port: int
    is_client: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'ray://' if self.is_client else ''}{host}:{self.port}"


def parse_address(text: str) -> RayAddress:
    """Parses an address.

    Raises:
        MeshError: if it is not of a form that Ray knows.
    """
    rest = text.removeprefix("ray://")
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise MeshError(
            f'address={text!r} is not the address of a Ray cluster. Give "ray://host:10001", "host:6379" or "auto".'
        )
    return RayAddress(host=host, port=int(port), is_client=rest != text)


def check_answers(address: RayAddress) -> None:
    """Checks that a gRPC server answers at an address, within 5 seconds.

    Raises:
        MeshError: if nothing or something else does.
    """
    try:
        with socket.create_connection((address.host, address.port), timeout=_CONNECT_S) as connection:
            # Under TLS the server speaks only after a handshake that Ray itself will make.
            answered = os.environ.get("RAY_USE_TLS", "0") != "0" or _says_hello(connection)
    except OSError as error:
        raise MeshError(
            f"No Ray cluster could be reached at {address}: {_reason(error)}. Is it running there "
            f"(`ray start --head{_port_option(address)}`), and may this host connect to that port?"
        ) from None
    if not answered:
        raise MeshError(
            f"Something listens at {address}, but it is not Ray. Give the address that `ray start --head` showed, "
            "or ray://host:10001."
        )


def _says_hello(connection: socket.socket) -> bool:
    connection.settimeout(_ANSWER_S)
    try:
        connection.sendall(_HTTP2_HELLO)
        header = connection.recv(9, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(header) == 9 and header[3] == _SETTINGS_FRAME


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_S:.0f} s"
    if isinstance(error, socket.gaierror):
        return f"the host name is not known ({error.strerror})"
    return (error.strerror or str(error)).lower()


def _port_option(address: RayAddress) -> str:
    if address.is_client:
        return "" if address.port == 10001 else f" --ray-client-server-port={address.port}"
    return "" if address.port == 6379 else f" --port={address.port}"
