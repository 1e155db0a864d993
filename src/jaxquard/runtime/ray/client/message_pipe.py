"""A pipe between two processes that carries whole messages.

A message is one packet, which the kernel passes on as a whole or not at all. So Ctrl-C in the middle of a send leaves
nothing half sent, and threads need no lock. What is too large for a packet crosses as a file in memory, whose
descriptor goes with the packet. A pair of sockets has no name: nobody else can connect.
"""

import array
import contextlib
import mmap
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from typing import Any

_MAX_PACKET_BYTES = 16 * 1024
_MAX_WRITE_BYTES = 1 << 30
_ALIGNMENT = 64
"""Of arrays, in bytes, as JAX wants it."""
_DESCRIPTOR_BYTES = socket.CMSG_LEN(array.array("i").itemsize)


class MessagePipe:
    """One end of a pipe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: Any, buffers: Sequence[Any] = ()) -> None:
        """Sends a message, and the content of buffers with it.

        Raises:
            OSError: if the other end is gone.
        """
        sizes = tuple(memoryview(buffer).nbytes for buffer in buffers)
        body = pickle.dumps((message, sizes), protocol=5)
        if len(body) <= _MAX_PACKET_BYTES and not buffers:
            self._connection.send(body)
            return
        contents = buffers
        if len(body) > _MAX_PACKET_BYTES:
            contents, body = (body, *buffers), pickle.dumps((None, (len(body), *sizes)), protocol=5)
        file = _write_file(contents)
        try:
            socket.send_fds(self._connection, [body], [file])
        finally:
            os.close(file)

    def receive(self) -> tuple[Any, list[memoryview]]:
        """Waits for the next message; returns it, and its buffers.

        Raises:
            EOFError: if the other end is closed.
            OSError: if the pipe is broken.
        """
        body, extras, _, _ = self._connection.recvmsg(2 * _MAX_PACKET_BYTES, _DESCRIPTOR_BYTES)
        if not body:
            raise EOFError
        message, sizes = pickle.loads(body)
        if not extras:
            return message, []
        ((_, _, descriptor),) = extras
        contents = _read_file(int.from_bytes(descriptor, sys.byteorder), sizes)
        if message is None:
            message, _ = pickle.loads(contents[0])
            contents = contents[1:]
        return message, contents

    def shut_down(self) -> None:
        """Has both ends see the end of the pipe, also a thread that waits for a message here."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


def make_pipe() -> tuple[socket.socket, socket.socket]:
    """Makes the two ends of a pipe."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _write_file(contents: Sequence[Any]) -> int:
    """Writes contents into a file in memory, each at a multiple of `_ALIGNMENT`; returns its descriptor."""
    file = os.memfd_create("jaxquard message")
    try:
        views = [memoryview(content).cast("B") for content in contents]
        starts, size = _layout([view.nbytes for view in views])
        os.truncate(file, size)
        for start, view in zip(starts, views, strict=True):
            written = 0
            while written < view.nbytes:
                written += os.pwrite(file, view[written : written + _MAX_WRITE_BYTES], start + written)
    except BaseException:
        os.close(file)
        raise
    return file


def _read_file(file: int, sizes: Sequence[int]) -> list[memoryview]:
    """Maps a file of contents of some sizes into memory; it goes when nobody holds them."""
    starts, size = _layout(sizes)
    try:
        # The sender has closed it: it is ours, to be changed too.
        whole = memoryview(mmap.mmap(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
    finally:
        os.close(file)
    return [whole[start : start + length] for start, length in zip(starts, sizes, strict=True)]


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Returns where contents of some sizes start in a file, and its size."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return starts, max(end, 1)
