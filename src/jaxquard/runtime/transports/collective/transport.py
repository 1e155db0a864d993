"""Transport over collectives: NCCL on GPUs, gloo on CPU. All processes of all actors form one `jax.distributed`.

A message crosses by a compiled permutation over the devices of the two processes (`pair_exchange`). Both
must take part at once, and their devices do nothing else meanwhile, so each process runs its transfers in
the one order of all (`transfer_thread`). When a process is lost, `jax.distributed` is, and all must be
started again.

The caller has initialised `jax.distributed`, on CPU with `jax_cpu_collectives_implementation` set to `gloo`.
It has been run on CPU alone so far.
"""

from collections.abc import Mapping, Sequence

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.collective.ends import CollectiveReceiver, CollectiveSender
from jaxquard.runtime.transports.collective.pair_exchange import PairExchange
from jaxquard.runtime.transports.collective.rendezvous import Round, Transfer, TransferThread
from jaxquard.runtime.transports.collective.signals import Note, Signals
from jaxquard.runtime.transports.progress import TransportProgress
from jaxquard.runtime.transports.protocol import Link, Report
from jaxquard.runtime.transports.wire import local_devices

WINDOW_MESSAGES = 4
WINDOW_BYTES = 256 * 2**20


class CollectiveTransport:
    """One process's transfers with the processes of equal rank in other actors."""

    survives_loss = False

    def __init__(
        self,
        devices: Sequence[jax.Device],
        *,
        actor: int,
        host: str = "127.0.0.1",
        window_messages: int = WINDOW_MESSAGES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """Starts to listen for notes of peers.

        Args:
            devices: this process's own; the actor's mesh has the first of them, or all, in this order.
            actor: that this process is part of.
            host: the address of this host under which peers reach it; nothing listens on others.
            window_messages: how many messages may arrive ahead of need, at most; at least one.
            window_bytes: how many bytes they may take; a larger message comes alone.
        """
        self._actor = actor
        self._devices = tuple(devices)
        self._peer_devices: dict[int, tuple[jax.Device, ...]] = {}
        self._pairs: dict[tuple[int, int, int], PairExchange] = {}
        self._ends: dict[int, list[CollectiveSender | CollectiveReceiver]] = {}
        self._transfers: dict[int, tuple[Transfer, ...]] = {}
        self._round: Round | None = None
        self._progress = TransportProgress()
        self._thread = TransferThread(
            self._say, window=(max(1, window_messages), window_bytes), on_end=self._close_signals
        )
        self._signals = Signals(actor, host=host, on_note=self._thread.note, on_lost=self._thread.lose)

    @property
    def address(self) -> str:
        """Where it listens, and which devices it has: `10.0.0.1:4711/2,3`."""
        return f"{self._signals.address}/{','.join(str(device.id) for device in self._devices)}"

    def connect(self, peers: Mapping[int, Sequence[str]]) -> None:
        by_id = {device.id: device for device in jax.devices(self._devices[0].platform)}
        rank = peers[self._actor].index(self.address)
        for actor, addresses in peers.items():
            if actor != self._actor:
                address, ids = addresses[rank].rsplit("/", 1)
                self._peer_devices[actor] = tuple(by_id[int(id_)] for id_ in ids.split(","))
                self._signals.connect(actor, address)

    def open_sender(self, link: Link, *, program_id: int, mesh: Mesh) -> CollectiveSender:
        self._check_devices(mesh)
        end = CollectiveSender(
            link,
            program_id=program_id,
            mesh=mesh,
            find_round=self._find_round,
            thread=self._thread,
            progress=self._progress.add_sender(peer=link.target, program_id=program_id),
        )
        self._ends.setdefault(program_id, []).append(end)
        return end

    def open_receiver(self, link: Link, *, program_id: int, mesh: Mesh) -> CollectiveReceiver:
        self._check_devices(mesh)
        end = CollectiveReceiver(
            link,
            program_id=program_id,
            mesh=mesh,
            find_round=self._find_round,
            thread=self._thread,
            progress=self._progress.add_receiver(peer=link.source, program_id=program_id),
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

    def report(self) -> Report:
        return self._progress.report()

    def close(self) -> None:
        self._thread.close()

    def _check_devices(self, mesh: Mesh) -> None:
        own = tuple(local_devices(mesh))
        assert own == self._devices[: len(own)], "a mesh has the first of its process's devices, in order"

    def _meet(self, source: int, target: int, num_devices: int) -> PairExchange:
        devices = {**self._peer_devices, self._actor: self._devices}
        ends = [devices[actor][:num_devices] for actor in (source, target)]
        pair = PairExchange(*ends, is_source=source == self._actor)
        pair.warm_up()
        return pair

    def _prepare(self, end: CollectiveSender | CollectiveReceiver) -> list[Transfer]:
        link, is_send = end.link, isinstance(end, CollectiveSender)
        pair = self._pairs[end.pair]
        return [
            Transfer(
                order=order,
                peer=link.target if is_send else link.source,
                is_send=is_send,
                size_bytes=message.size_bytes,
                exchange=pair.compile(message),
            )
            for order, message in zip(link.orders, end.messages, strict=True)
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

    def _say(self, actor: int, note: Note) -> None:
        self._signals.send(actor, note)

    def _close_signals(self) -> None:
        self._signals.close()
