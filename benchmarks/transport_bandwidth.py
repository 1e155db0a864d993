"""The time of our transports between processes, as ratios to the bare `jax.experimental.transfer`.

Two processes exchange a message: the time of one way, for 64 MB and 1 KB. The bare transport blocks until its array is
ready, which cannot be cancelled; ours can. All run in the same processes, in alternation, so that only the ratio
counts. `stream` goes through a socket of the file system, as on one host, or through TLS, as between hosts.
"""

import multiprocessing
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import jax
import numpy as np
from jax.experimental import transfer
from jax.sharding import Mesh

from benchmarks.measure import measure, print_ratios
from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transfer import sharding_on
from jaxquard.runtime.transports.base import BaseTransport
from jaxquard.runtime.transports.peers.secret import MeshSecret, new_mesh_secret
from jaxquard.runtime.transports.protocol import Channel
from jaxquard.runtime.transports.stream.transport import StreamTransport
from jaxquard.runtime.transports.transfer.transport import TransferTransport

# (size in floats, trips in one measurement, rounds)
CASES = {"64 MB": (16 * 2**20, 1, 12), "1 KB": (256, 50, 40)}
NUM_DEVICES = 2
# Bandwidth of at least 0.9 of the bare transport's.
TARGETS = {"64 MB": dict.fromkeys(("stream", "transfer"), 1 / 0.9)}


class Player:
    """One of the two processes; each trip sends a message there and back."""

    def __init__(self, actor: int, pipe: Any) -> None:
        self.actor, self.pipe = actor, pipe
        self.mesh = Mesh(np.array(jax.devices()[:NUM_DEVICES]), ("x",))
        self.server = transfer.start_transfer_server(jax.devices()[0].client, "127.0.0.1:0", ["127.0.0.1:0"])
        secret = new_mesh_secret() if actor == 0 else pipe.recv()
        if actor == 0:
            pipe.send(secret)
        self.transports = _open_transports(actor, secret)
        pipe.send((self.server.address(), {name: each.address for name, each in self.transports.items()}))
        address, peers = pipe.recv()
        self.connection = self.server.connect(address)
        for name, each in self.transports.items():
            # Without the socket of the file system, as from another host.
            peer = peers[name].partition(",unix:")[0]
            each.connect({actor: [each.address], 1 - actor: [peer]})
        self.numbers = count()

    def candidates(self, size: int, num_trips: int, *, may_donate: bool) -> dict[str, Callable[[], None]]:
        type_ = ArrayType(dtype="float32", shape=(size,), spec=(("x",),))
        value = jax.device_put(np.ones(size, np.float32), sharding_on(self.mesh, type_))
        return {
            "bare transfer": self._bare(value, num_trips),
            **{name: self._ours(each, value, type_, num_trips) for name, each in self.transports.items()},
            **(
                {"transfer, acknowledged": self._ours(self.transports["transfer"], value, type_, num_trips, may_donate)}
                if may_donate
                else {}
            ),
        }

    def _bare(self, value: jax.Array, num_trips: int) -> Callable[[], None]:
        type_ = [jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=value.sharding)]

        def send(number: int) -> None:
            self.server.await_pull(2 * number + self.actor, [value])

        def receive(number: int) -> None:
            self.connection.pull(2 * number + 1 - self.actor, type_)[0].block_until_ready()

        def run() -> None:
            for _ in range(num_trips):
                number = next(self.numbers)
                self._play(send, receive, number)

        return run

    def _ours(
        self, transport: BaseTransport, value: jax.Array, type_: ArrayType, num_trips: int, may_donate: bool = False
    ) -> Callable[[], None]:
        program_id = next(self.numbers)
        channels = [
            Channel(
                source=source,
                target=1 - source,
                messages=((type_,),) * num_trips,
                orders=tuple(range(source, 2 * num_trips, 2)),
                may_donate=(may_donate,) * num_trips,
            )
            for source in range(2)
        ]
        sender = transport.open_sender(channels[self.actor], program_id=program_id, mesh=self.mesh)
        receiver = transport.open_receiver(channels[1 - self.actor], program_id=program_id, mesh=self.mesh)

        def run() -> None:
            step = next(self.numbers)
            receiver.begin(step)
            for number in range(num_trips):
                self._play(
                    lambda number: sender.send(step, number, [value]),
                    lambda number: receiver.recv(step, number, should_stop=bool),
                    number,
                )

        return run

    def _play(self, send: Callable[[int], Any], receive: Callable[[int], Any], number: int) -> None:
        first, second = (send, receive) if self.actor == 0 else (receive, send)
        first(number)
        second(number)


def _open_transports(actor: int, secret: MeshSecret) -> dict[str, BaseTransport]:
    return {
        "stream": StreamTransport(jax.devices(), actor=actor, secret=secret),
        "stream, TLS": StreamTransport(jax.devices(), actor=actor, secret=secret, on_network=True),
        "transfer": TransferTransport(jax.devices(), actor=actor, secret=secret),
    }


def _make_player(actor: int, pipe: Any) -> Player:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    return Player(actor, pipe)


def _prepare(player: Player) -> dict[str, dict[str, Callable[[], None]]]:
    return {
        name: player.candidates(size, num_trips, may_donate=name == "1 KB")
        for name, (size, num_trips, _) in CASES.items()
    }


def _answer(pipe: Any) -> None:
    """The other process: runs the candidate that the first one names."""
    cases = _prepare(_make_player(1, pipe))
    while (message := pipe.recv()) is not None:
        case, candidate = message
        cases[case][candidate]()
    os._exit(0)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs,), daemon=True)
    process.start()
    cases = _prepare(_make_player(0, pipe))

    def together(case: str, candidate: str) -> Callable[[], None]:
        def run() -> None:
            pipe.send((case, candidate))
            cases[case][candidate]()

        return run

    for case, (_, num_trips, num_rounds) in CASES.items():
        measurements = measure({name: together(case, name) for name in cases[case]}, num_rounds=num_rounds)
        minimum_s = measurements["stream"].minimum_s / num_trips / 2
        print_ratios(
            measurements,
            title=f"{num_trips} trips of {case} there and back; stream takes {minimum_s * 1e6:.0f} µs one way at least",
            base="bare transfer",
            at_most=TARGETS.get(case),
        )
    pipe.send(None)
    process.join()
