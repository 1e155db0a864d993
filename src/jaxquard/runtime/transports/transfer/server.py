"""Holds the offers and pulls of `jax.experimental.transfer` in one place, so that closing it really ends them.

Everything that an offer holds is freed when the server goes, and the server goes when nobody holds it. So
the ends of channels use it through this class alone, which also knows which pulls wait, as these hold it too (see
`drain`).

`use_raw_buffers` stays off. It would save some 20 us a message, but with it a pull of a buffer that was
donated too early gives the new contents without a word; without it, it is an error.
"""

from collections import deque
from typing import Any

import jax
import numpy as np
from jax.experimental import transfer

from jaxquard.runtime.transports.peers.secret import MeshSecret
from jaxquard.runtime.transports.protocol import TransferStopped
from jaxquard.runtime.transports.transfer.drain import start_drain


class TransferServer:
    """A server, and connections to those of peers."""

    def __init__(self, device: jax.Device, *, actor: int, host: str, secret: MeshSecret) -> None:
        """Starts to listen on a free port of `host`; arrays are those of the device's client."""
        self._actor, self._secret = actor, secret
        self._device = device
        self._server: Any = transfer.start_transfer_server(device.client, f"{host}:0", [f"{host}:0"])
        self._connections: dict[int, Any] = {}
        self._values: dict[int, int] = {}
        self._tokens: deque[tuple[int, int, Any]] = deque()
        self._token = jax.device_put(np.ones(1, np.uint8), device)
        self._token_type = jax.ShapeDtypeStruct(self._token.shape, self._token.dtype, sharding=self._token.sharding)
        self.address: str = self._server.address()

    def connect(self, actor: int, address: str) -> None:
        self._connections[actor] = self._server.connect(address)

    def offer(self, number: int, arrays: list[jax.Array]) -> None:
        server = self._server
        if server is None:
            raise TransferStopped("nothing can be sent: the transport is closed.")
        server.await_pull(number, arrays)

    def pull(self, actor: int, number: int, types: list[jax.ShapeDtypeStruct]) -> list[jax.Array]:
        """Returns arrays that are pending until the actor has offered the number and they have arrived."""
        arrays = self._pull(actor, number, types)
        self._values[number] = actor
        return arrays

    def settle(self, number: int) -> None:
        """Forgets a pull that has arrived or failed."""
        self._values.pop(number, None)

    def offer_token(self, number: int) -> None:
        self.offer(number, [self._token])

    def pull_token(self, actor: int, number: int) -> jax.Array:
        """Returns an array that is ready when the actor has offered a token under this number."""
        (token,) = self._pull(actor, number, [self._token_type])
        while self._tokens and self._tokens[0][2].is_ready():
            self._tokens.popleft()
        self._tokens.append((actor, number, token))
        return token

    def close(self) -> None:
        server, connections = self._server, self._connections
        if server is None:
            return
        self._server, self._connections = None, {}
        waiting: dict[int, list[int]] = {}
        for actor, number in [
            *((actor, number) for number, actor in list(self._values.items())),
            *((actor, number) for actor, number, token in list(self._tokens) if not token.is_ready()),
        ]:
            waiting.setdefault(actor, []).append(number)
        start_drain(server, connections, waiting, own=self._actor, device=self._device, secret=self._secret)

    def _pull(self, actor: int, number: int, types: list[jax.ShapeDtypeStruct]) -> list[jax.Array]:
        connection = self._connections.get(actor)
        if connection is None:
            raise TransferStopped(f"nothing can be received from actor {actor}: the transport is closed.")
        return connection.pull(number, types)
