"""Transport over collectives: NCCL on GPUs, gloo on CPU. All processes of all actors form one `jax.distributed`.

A message crosses by a compiled permutation over the devices of the two processes (`pair_exchange`). Both
must take part at once, and their devices do nothing else meanwhile, so each process runs its transfers in
the one order that all share (`rendezvous`). When a process is lost, `jax.distributed` is lost too, and all must
be started again.

The caller has initialised `jax.distributed`, on CPU with `jax_cpu_collectives_implementation` set to `gloo`.
It has been run on CPU alone so far.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.base import BaseTransport
from jaxquard.runtime.transports.collective.ends import CollectiveReceiver, CollectiveSender
from jaxquard.runtime.transports.collective.pair_exchange import PairExchange
from jaxquard.runtime.transports.collective.rendezvous import Round, Transfer, TransferThread
from jaxquard.runtime.transports.collective.signals import Signal, Signals
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress
from jaxquard.runtime.transports.protocol import Channel
from jaxquard.runtime.transports.wire import local_devices

EndT = TypeVar("EndT", CollectiveSender, CollectiveReceiver)


class CollectiveTransport(BaseTransport):
    """One process's transfers with the processes of equal rank in other actors."""

    survives_loss = False

    @property
    def address(self) -> str:
        """The address that it listens at, and the ids of its devices: `tls:10.0.0.1:4711,unix:/tmp/jq-1/2,3`."""
        return f"{self._signals.address}/{','.join(str(device.id) for device in self._devices)}"

    def _listen(self, host: str) -> None:
        self._peer_devices: dict[int, tuple[jax.Device, ...]] = {}
        self._pairs: dict[tuple[int, int, int], PairExchange] = {}
        self._ends: dict[int, list[CollectiveSender | CollectiveReceiver]] = {}
        self._transfers: dict[int, tuple[Transfer, ...]] = {}
        self._round: Round | None = None
        self._thread = TransferThread(self._send_signal, window=self._window, on_end=self._close_signals)
        self._signals = Signals(
            self._actor,
            secret=self._secret,
            host=host if self._on_network else None,
            folder=self._folder,
            on_signal=self._thread.signal,
            on_lost=self._thread.lose,
        )

    def _connect(self, peers: Mapping[int, str]) -> None:
        by_id = {device.id: device for device in jax.devices(self._devices[0].platform)}
        split = {actor: address.rsplit("/", 1) for actor, address in peers.items()}
        for actor, (_, ids) in split.items():
            self._peer_devices[actor] = tuple(by_id[int(id_)] for id_ in ids.split(","))
        self._signals.connect({actor: address for actor, (address, _) in split.items()})

    def _make_sender(
        self, channel: Channel, *, program_id: int, mesh: Mesh, progress: SenderProgress
    ) -> CollectiveSender:
        return self._add(CollectiveSender, channel, program_id, mesh, progress)

    def _make_receiver(
        self, channel: Channel, *, program_id: int, mesh: Mesh, progress: ReceiverProgress
    ) -> CollectiveReceiver:
        return self._add(CollectiveReceiver, channel, program_id, mesh, progress)

    def _add(self, kind: type[EndT], channel: Channel, program_id: int, mesh: Mesh, progress: Any) -> EndT:
        own = tuple(local_devices(mesh))
        assert own == self._devices[: len(own)], "a mesh has the first of its process's devices, in order"
        end = kind(
            channel,
            program_id=program_id,
            mesh=mesh,
            progress=progress,
            find_round=self._find_round,
            thread=self._thread,
        )
        self._ends.setdefault(program_id, []).append(end)
        return end

    def start(self, program_id: int) -> None:
        """Compiles a program's transfers, and meets each peer once, while no step is under way."""
        ends = self._ends.setdefault(program_id, [])
        for key in sorted({end.pair for end in ends}):
            if key not in self._pairs:
                self._pairs[key] = self._meet(*key)
        transfers = [transfer for end in ends for transfer in self._prepare(end)]
        self._transfers[program_id] = tuple(sorted(transfers, key=lambda transfer: transfer.order))

    def close(self) -> None:
        self._thread.close()

    def _meet(self, source: int, target: int, num_devices: int) -> PairExchange:
        devices = {**self._peer_devices, self._actor: self._devices}
        ends = [devices[actor][:num_devices] for actor in (source, target)]
        pair = PairExchange(*ends, is_source=source == self._actor)
        pair.warm_up()
        return pair

    def _prepare(self, end: CollectiveSender | CollectiveReceiver) -> list[Transfer]:
        channel, is_send = end.channel, isinstance(end, CollectiveSender)
        pair = self._pairs[end.pair]
        return [
            Transfer(
                order=order,
                peer=channel.target if is_send else channel.source,
                is_send=is_send,
                size_bytes=message.size_bytes,
                exchange=pair.compile(message),
            )
            for order, message in zip(channel.orders, end.messages, strict=True)
            if message.parts
        ]

    def _find_round(self, program_id: int, step: int) -> Round:
        current = self._round
        if current is None or current.step != step:
            assert current is None or step > current.step, "steps are numbered in the order in which they run"
            current = self._round = Round(program_id, step, self._transfers[program_id])
            self._thread.add_round(current)
        assert current.program_id == program_id
        return current

    def _send_signal(self, actor: int, signal: Signal) -> None:
        self._signals.send(actor, signal)

    def _close_signals(self) -> None:
        self._signals.close()
