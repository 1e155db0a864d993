"""A connection between two processes, used in one direction once both have proved who they are.

One direction, as an `SSLSocket` may not be read and written by two threads at once. For the same reason only the thread
that uses a connection closes it; others hang up, which wakes that thread.
"""

import contextlib
import select
import socket
import ssl
import threading
import traceback

_BUFFER_BYTES = 4 * 2**20
_KEEPALIVE_S = 60
SMALL_BYTES = 16 * 2**10
"""As many bytes fit whenever the kernel says that a socket can be written to: it wants a third of its buffer free."""
_WRITE_BYTES = 16 * 2**20
"""What is given to one call of TLS, which cannot be interrupted."""


class PeerConnection:
    """Reads and writes whole pieces, or raises an `OSError`: the peer is gone, or the connection is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._write_lock = threading.Lock()
        self._poll = select.poll()

    def read_into(self, buffer: memoryview) -> None:
        """Fills a buffer of bytes."""
        position, size = 0, len(buffer)
        while position < size:
            count = self._socket.recv_into(buffer[position:])
            if not count:
                raise ConnectionError("the other process has ended or closed the connection")
            position += count

    def read(self, size: int) -> bytes:
        content = bytearray(size)
        self.read_into(memoryview(content))
        return bytes(content)

    def write(self, *buffers: bytes | memoryview) -> None:
        """Writes buffers of bytes, one after another; returns when the kernel has all of them."""
        with self._write_lock:
            for buffer in buffers:
                view = memoryview(buffer)
                for start in range(0, len(view), _WRITE_BYTES):
                    self._socket.sendall(view[start : start + _WRITE_BYTES])

    def try_write(self, content: bytes) -> bool:
        """Writes a few bytes if that takes no waiting; returns False if it would."""
        assert len(content) <= SMALL_BYTES
        if not self._write_lock.acquire(blocking=False):
            return False
        try:
            is_free = bool(self._poll.poll(0))
            if is_free:
                self._socket.sendall(content)
            return is_free
        finally:
            self._write_lock.release()

    def begin_use(self) -> None:
        """Ends the time limit of the handshake, and gives large messages some space in the kernel."""
        if self._socket.family == socket.AF_UNIX:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        else:
            # The kernel finds the size of buffers by itself, as long as nobody gives it one.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A firewall between hosts forgets connections that are silent while a step computes.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        self._socket.settimeout(None)
        self._poll.register(self._socket, select.POLLOUT)

    def hang_up(self) -> None:
        """Ends the connection; whoever waits on it wakes with an error."""
        hang_up_socket(self._socket)

    def close(self) -> None:
        """Ends the connection and frees it. Only who reads may do so; a write that is under way ends first."""
        self.hang_up()
        with self._write_lock:
            self._socket.close()


def hang_up_socket(connection: socket.socket) -> None:
    """Shuts a socket down: closing it would not wake the thread that waits on it."""
    with contextlib.suppress(OSError):
        # The method of plain sockets: that of TLS ones is not for other threads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def wrap_tls(plain: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> ssl.SSLSocket:
    """Puts TLS on a socket, whose descriptor it takes; the handshake is still to be made."""
    try:
        return context.wrap_socket(
            plain, server_side=is_server, do_handshake_on_connect=False, suppress_ragged_eofs=False
        )
    except OSError as error:
        # If the other end has hung up by now, CPython forgets to close the socket that it has made so far.
        for frame, _ in traceback.walk_tb(error.__traceback__):
            made = frame.f_locals.get("self")
            if isinstance(made, ssl.SSLSocket):
                made.close()
        raise
