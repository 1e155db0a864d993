"""Offers arrays to peers and pulls theirs, over the connections of one process.

A peer asks for a number (PULL), and gets the bytes that are offered under it (DATA), at once or when they are offered
and computed; or it hears that they could not be computed (FAILED). An offer holds its arrays until its bytes are
with the kernel, or until the server is closed.

Each peer has a thread that writes to it and one that reads from it. The reading thread waits for nothing but the peer,
so that what is written to it always moves on. A few bytes that the kernel can take at once are written by the thread
that has them: waking another takes longer.
"""

import queue
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxquard.runtime.transports.base import are_ready
from jaxquard.runtime.transports.peers.connection import SMALL_BYTES, PeerConnection
from jaxquard.runtime.transports.peers.links import PeerLinks
from jaxquard.runtime.transports.peers.secret import MeshSecret
from jaxquard.runtime.transports.protocol import TransferStopped
from jaxquard.runtime.transports.stream.frames import MessageBytes, bytes_of

_FRAME = struct.Struct("<BQQ")
_PULL, _DATA, _FAILED = range(3)
_WAKE_S = 5e-3
"""How often a wait asks if it is to stop; the arrival itself wakes it."""


class StreamOffer:
    """A message on its way; taken when the kernel has its bytes, or the peer is gone."""

    __slots__ = ("_is_taken", "form", "number", "parts")

    def __init__(self, number: int, form: MessageBytes, parts: Sequence[jax.Array]) -> None:
        self.number, self.form = number, form
        self.parts: Sequence[jax.Array] = parts
        self._is_taken = False

    def is_taken(self) -> bool:
        return self._is_taken

    def release(self) -> None:
        self.parts = ()
        self._is_taken = True


class StreamPull:
    """A message that was asked for."""

    def __init__(self, form: MessageBytes) -> None:
        self.form = form
        self._done = threading.Event()
        self._arrays: list[jax.Array] = []
        self._error: OSError | None = None

    def finish(self, arrays: list[jax.Array], error: OSError | None = None) -> None:
        self._arrays, self._error = arrays, error
        self._done.set()

    def is_ready(self) -> bool:
        return self._done.is_set()

    def wait(self, *, should_stop: Callable[[], bool]) -> bool:
        while not self._done.wait(_WAKE_S):
            if should_stop():
                return False
        return True

    def take(self) -> list[jax.Array]:
        if self._error is not None:
            raise self._error
        return self._arrays

    def watched(self) -> list[Any]:
        return [self]

    def block_until_ready(self) -> None:
        self._done.wait()


class StreamServer:
    """The offers of a process, and its pulls from peers."""

    def __init__(self, actor: int, *, secret: MeshSecret, host: str | None, folder: str | None) -> None:
        """Starts to listen; see `PeerListener`."""
        self._lock = threading.Lock()
        self._offers: dict[int, StreamOffer] = {}
        self._wanted: dict[int, int] = {}
        self._pulls: dict[int, dict[int, StreamPull]] = {}
        self._lost: dict[int, OSError] = {}
        self._outboxes: dict[int, queue.SimpleQueue[StreamOffer | int | None]] = {}
        self._is_closed = False
        self._links = PeerLinks(actor, secret=secret, host=host, folder=folder, read=self._read, on_lost=self._lose)
        self.address = self._links.address

    def connect(self, peers: Mapping[int, str]) -> None:
        for actor in peers:
            outbox = self._outboxes[actor] = queue.SimpleQueue()
        self._links.connect(dict(peers))
        for actor, outbox in self._outboxes.items():
            threading.Thread(target=self._write, args=(actor, outbox), name=f"jaxquard-to-{actor}", daemon=True).start()

    def offer(self, number: int, form: MessageBytes, parts: Sequence[jax.Array]) -> StreamOffer:
        """Offers a message; its peer gets it when it asks for it."""
        offer = StreamOffer(number, form, parts)
        with self._lock:
            if self._is_closed:
                raise TransferStopped("nothing can be sent: the transport is closed.")
            peer = self._wanted.pop(number, None)
            if peer is None:
                self._offers[number] = offer
        if peer is not None and not self._write_at_once(peer, offer):
            self._outboxes[peer].put(offer)
        return offer

    def pull(self, actor: int, number: int, form: MessageBytes) -> StreamPull:
        """Asks an actor for a message."""
        pull = StreamPull(form)
        with self._lock:
            if self._is_closed or actor not in self._outboxes:
                raise TransferStopped(f"nothing can be received from actor {actor}: the transport is closed.")
            if actor in self._lost:
                raise self._lost[actor]
            self._pulls.setdefault(actor, {})[number] = pull
        if not self._links.try_write(actor, _FRAME.pack(_PULL, number, 0)):
            self._outboxes[actor].put(number)
        return pull

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            offers, self._offers = self._offers, {}
            pulls, self._pulls = self._pulls, {}
            self._wanted.clear()
        for outbox in self._outboxes.values():
            outbox.put(None)
        self._links.close()
        for offer in offers.values():
            offer.release()
        for pull in (pull for by_number in pulls.values() for pull in by_number.values()):
            pull.finish([], ConnectionError("the transport was closed"))

    # Writing.

    def _write_at_once(self, peer: int, offer: StreamOffer) -> bool:
        """Writes a small message that is computed; returns False if it is not one, or has to wait."""
        size = offer.form.size_bytes
        if size + _FRAME.size > SMALL_BYTES or not are_ready(offer.parts):
            return False
        try:
            views = offer.form.views(offer.parts)
        except Exception:
            return False
        is_written = self._links.try_write(peer, b"".join([_FRAME.pack(_DATA, offer.number, size), *views]))
        if is_written:
            offer.release()
        return is_written

    def _write(self, peer: int, outbox: "queue.SimpleQueue[StreamOffer | int | None]") -> None:
        while (item := outbox.get()) is not None:
            if isinstance(item, int):
                self._links.write(peer, _FRAME.pack(_PULL, item, 0))
            else:
                self._write_offer(peer, item)
            del item

    def _write_offer(self, peer: int, offer: StreamOffer) -> None:
        try:
            views = offer.form.views(offer.parts)
        except Exception:
            # The step fails here too, and says why.
            self._links.write(peer, _FRAME.pack(_FAILED, offer.number, 0))
        else:
            header = _FRAME.pack(_DATA, offer.number, offer.form.size_bytes)
            self._links.write(peer, header, *views)
        offer.release()

    # Reading.

    def _read(self, peer: int, connection: PeerConnection) -> None:
        """Reads what a peer writes, until it ends."""
        header = bytearray(_FRAME.size)
        while True:
            connection.read_into(memoryview(header))
            kind, number, size = _FRAME.unpack(header)
            if kind == _PULL:
                self._want(peer, number)
            elif kind == _DATA:
                self._receive(peer, number, size, connection)
            elif kind == _FAILED:
                self._finish(peer, number, [], ConnectionError("its sender could not compute it"))
            else:
                raise ConnectionError(f"actor {peer} sent a frame of the unknown kind {kind}")

    def _want(self, peer: int, number: int) -> None:
        with self._lock:
            offer = self._offers.pop(number, None)
            if offer is None:
                self._wanted[number] = peer
        if offer is not None:
            self._outboxes[peer].put(offer)

    def _receive(self, peer: int, number: int, size: int, connection: PeerConnection) -> None:
        with self._lock:
            pull = self._pulls.get(peer, {}).get(number)
        if pull is None or pull.form.size_bytes != size:
            raise ConnectionError(f"actor {peer} sent {size} bytes that were not asked for")
        shards = pull.form.allocate()
        for shard in (shard for own in shards for shard in own):
            connection.read_into(bytes_of(shard))
        try:
            arrays = pull.form.join(shards)
        except Exception as error:
            # The devices here have no memory for it: no fault of the peer.
            self._finish(peer, number, [], OSError(f"it came, but could not be put on the devices here: {error}"))
        else:
            self._finish(peer, number, arrays)

    def _finish(self, peer: int, number: int, arrays: list[jax.Array], error: OSError | None = None) -> None:
        with self._lock:
            pull = self._pulls.get(peer, {}).pop(number, None)
        if pull is not None:
            pull.finish(arrays, error)

    def _lose(self, peer: int, error: OSError) -> None:
        """Fails what was asked of a peer that is gone."""
        loss = ConnectionError(f"the connection to actor {peer} has ended: {error}")
        with self._lock:
            self._lost.setdefault(peer, loss)
            pulls = self._pulls.pop(peer, {})
        for pull in pulls.values():
            pull.finish([], loss)
