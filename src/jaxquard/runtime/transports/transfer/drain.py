"""Ends the pulls that still wait when a transfer server is closed, so that it really goes.

A pull that waits holds its connection, a connection holds its own server and its peer's, and a server holds
everything that was offered and not pulled; none of this is freed while a pull waits for a number that nobody will
offer any more. So each side sends the other, by the transport itself, the numbers that it waits for:

    offer   how many numbers I wait for, and which          (under numbers that both know)
    pull    the same of the peer
    offer   under each of the peer's numbers a deleted array: its pull ends with an error

If the peer is dead, the pulls have ended by themselves. It all happens on a thread that gives up after a
while: then the memory stays until the process ends.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxquard.runtime.transports.peers.secret import MeshSecret

_LIMIT_S = 60.0
_LOOK_S = 2e-3
_PURPOSE = b"jaxquard drain"


def start_drain(
    server: Any,
    connections: Mapping[int, Any],
    waiting: Mapping[int, Sequence[int]],
    *,
    own: int,
    device: jax.Device,
    secret: MeshSecret,
) -> None:
    """Starts to end all pulls between this process and its peers; the peers must do so too.

    Args:
        connections: by actor.
        waiting: for each actor, the numbers that this process waits for.
        own: the actor of this process.
        secret: of the mesh; it makes the numbers under which both sides say what they wait for.
    """
    drain = _Drain(server, own, device, secret)
    pairs = [(actor, connection, tuple(waiting.get(actor, ()))) for actor, connection in connections.items()]
    threading.Thread(target=drain.run, args=(pairs,), name="jaxquard-drain", daemon=True).start()


class _Drain:
    """The part of one process."""

    def __init__(self, server: Any, own: int, device: jax.Device, secret: MeshSecret) -> None:
        self._server = server
        self._own, self._secret = own, secret
        self._device = device
        self._end_s = time.monotonic() + _LIMIT_S

    def run(self, pairs: list[tuple[int, Any, tuple[int, ...]]]) -> None:
        for actor, _, numbers in pairs:
            self._offer(self._number(self._own, actor, "count"), np.array([len(numbers)], np.uint32))
            if numbers:
                self._offer(self._number(self._own, actor, "numbers"), np.array(numbers, np.uint64).view(np.uint32))
        for actor, connection, _ in pairs:
            for number in self._ask(actor, connection):
                nothing = jax.device_put(np.zeros(1, np.uint8), self._device)
                self._server.await_pull(number, [nothing])
                nothing.delete()

    def _ask(self, actor: int, connection: Any) -> list[int]:
        """Asks a peer for the numbers that it waits for; none if it is gone."""
        count = self._pull(connection, self._number(actor, self._own, "count"), 1)
        if count is None or count[0] == 0:
            return []
        numbers = self._pull(connection, self._number(actor, self._own, "numbers"), 2 * int(count[0]))
        return [] if numbers is None else numbers.view(np.uint64).tolist()

    def _offer(self, number: int, values: np.ndarray) -> None:
        self._server.await_pull(number, [jax.device_put(values, self._device)])

    def _pull(self, connection: Any, number: int, size: int) -> np.ndarray | None:
        type_ = jax.ShapeDtypeStruct((size,), np.uint32, sharding=SingleDeviceSharding(self._device))
        try:
            (values,) = connection.pull(number, [type_])
            while not values.is_ready():
                if time.monotonic() > self._end_s:
                    return None
                time.sleep(_LOOK_S)
            return np.array(values)
        except jax.errors.JaxRuntimeError:
            return None

    def _number(self, holder: int, peer: int, what: str) -> int:
        key = f"what actor {holder} waits for from actor {peer}: {what}"
        return self._secret.number(_PURPOSE, key.encode())
