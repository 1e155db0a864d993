"""Strangers who do not know a mesh's secret, and everything that they try at its addresses."""

import contextlib
import os
import random
import socket
import ssl
import struct
import time
from pathlib import Path

from jaxquard.runtime.transports.peers.handshake import _MAGIC
from jaxquard.runtime.transports.peers.listener import SOCKET_NAME
from jaxquard.runtime.transports.peers.secret import new_mesh_secret

CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(120))


def connect(address: str, *, timeout_s: float = 10.0) -> socket.socket:
    """Connects to one address of a listener, as anybody could: to its port if it has one."""
    port, _, folder = address.partition("unix:")
    if port:
        host, number = port.removeprefix("tls:").rstrip(",").rsplit(":", 1)
        return socket.create_connection((host, int(number)), timeout=timeout_s)
    descriptor = os.open(folder, os.O_PATH)
    plain = socket.socket(socket.AF_UNIX)
    try:
        plain.connect(f"/proc/self/fd/{descriptor}/{SOCKET_NAME}")
        plain.settimeout(timeout_s)
    except OSError:
        plain.close()
        raise
    finally:
        os.close(descriptor)
    return plain


def nonsense(generator: random.Random) -> bytes:
    """Draws something that a stranger sends: noise, zeros, huge lengths, parts of handshakes, other protocols."""
    kinds = (
        lambda: generator.randbytes(generator.randrange(4096)),
        lambda: bytes(generator.choice((1, 8, 40, 72, 104, 4096, 1 << 17))),
        lambda: b"\xff" * generator.choice((8, 17, 72, 1 << 16)),
        lambda: struct.pack("<BQQ", generator.randrange(4), generator.getrandbits(64), 2**63) * 9,
        lambda: _MAGIC[: generator.randrange(len(_MAGIC) + 1)],
        lambda: _MAGIC + generator.randbytes(generator.randrange(120)),
        lambda: generator.randbytes(32) + struct.pack("<II", 1, 0) + generator.randbytes(32),
        lambda: CLIENT_HELLO[: generator.randrange(len(CLIENT_HELLO))],
        lambda: bytes.fromhex("1703030040") + generator.randbytes(64),
        lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]),
        lambda: b"",
    )
    return generator.choice(kinds)()


def besiege(address: str, *, count: int, seed: int, recorded: tuple[bytes, ...] = ()) -> int:
    """Sends messages over as many connections; a few stay open and silent. Returns how many could connect.

    Args:
        recorded: what a peer once sent in a handshake, to be sent again.
    """
    generator = random.Random(seed)
    silent: list[socket.socket] = []
    num_connected = num_refused = 0
    for _ in range(count):
        try:
            plain = connect(address)
        except OSError:
            # The listener may be busy with the others, or there no more.
            num_refused += 1
            if num_refused > 20:
                break
            time.sleep(0.01)
            continue
        num_connected += 1
        with contextlib.suppress(OSError):
            plain.sendall(generator.choice(recorded) if recorded and generator.random() < 0.1 else nonsense(generator))
            if generator.random() < 0.3:
                plain.settimeout(0.02)
                plain.recv(64)
        if generator.random() < 0.05:
            silent.append(plain)
            continue
        if generator.random() < 0.2 and plain.family != socket.AF_UNIX:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        plain.close()
        while len(silent) > 100:
            silent.pop(0).close()
    for plain in silent:
        plain.close()
    return num_connected


def connect_with_other_certificate(address: str) -> None:
    """Shakes hands under TLS as a process of another mesh would, and writes; raises what the listener answers."""
    with connect(address) as plain, contextlib.ExitStack() as stack:
        context = new_mesh_secret().tls_context(is_server=False)
        context.verify_mode = ssl.CERT_NONE
        wrapped = stack.enter_context(context.wrap_socket(plain))
        wrapped.sendall(bytes(72))
        if not wrapped.recv(64):
            raise ConnectionError("it hung up")


def open_sockets() -> int:
    """Counts the sockets that this process has open."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += os.readlink(descriptor).startswith("socket:")
    return count
