"""The processes of all actors: starts them, calls them, and starts lost ones again (see `actor_loss`).

The controller speaks to a process only through `WorkerHandle`s, whose calls return references at once. Whoever waits
for them does so in `gather`, which gives up as soon as an actor is known to be lost.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from jaxquard.errors import ActorFailed, MeshError
from jaxquard.runtime.ray.client.packing import pack
from jaxquard.runtime.ray.client.ray_actor import WorkerError
from jaxquard.runtime.ray.client.ray_commands import WorkerGone, WorkerUnavailable
from jaxquard.runtime.ray.cluster.client_process import ClientProcess, RayLost, Reference, current_client, wait_for
from jaxquard.runtime.ray.cluster.hosts import kill_process, list_hosts
from jaxquard.runtime.ray.cluster.place_actors import ActorPlacement, place_actors
from jaxquard.runtime.ray.messages import WorkerConfig, WorkerInfo
from jaxquard.runtime.ray.worker.turns import TurnOver
from jaxquard.runtime.step_state import error_lines

_TICK_S = 0.25
# How often to see which hosts are there, while processes start.
_HOSTS_S = 2.0


class GivenUp(MeshError):
    """A call that waited for its turn never got it, as something failed before."""


class DiedWhileStarting(MeshError):
    """A process ended before JAX was up in it; it may be started again."""


class WorkerHandle:
    """Calls a worker for the controller: `handle.step(order)` returns a reference to the reply at once."""

    def __init__(self, client: ClientProcess, number: int) -> None:
        self._client, self._number = client, number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any) -> Reference:
            return self._client.call(self._number, name, args)

        self.__dict__[name] = call  # Remembered: a step should not cost more than it must.
        return call

    def kill(self) -> None:
        """Has Ray kill the process."""
        self._client.post("kill_worker", self._number)


def _start_worker(config: WorkerConfig, slot: "_Slot") -> WorkerHandle:
    """Starts a process in its place."""
    number = slot.placement.start_worker(pack(config).payload, actor=slot.actor, process=config.rank)
    return WorkerHandle(slot.placement.client, number)


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class WorkerProcess:
    """One process of an actor.

    Attributes:
        info: its description of itself, once it is up.
        is_started: True once JAX is up in it. Until then it has the time limit for starting, and needs no heartbeats.
        num_steps: how many steps it was sent.
    """

    actor: int
    rank: int
    handle: WorkerHandle
    info: WorkerInfo | None = None
    is_started: bool = False
    num_steps: int = 0

    @property
    def host(self) -> str:
        if self.info is None:
            return "a host that has not answered"
        return f"{self.info.host} ({self.info.ip})"


@dataclass(slots=True, kw_only=True)
class _Slot:
    """The place of an actor's processes: one actor of a placement."""

    placement: ActorPlacement
    actor: int


@dataclass(slots=True)
class WorkerGroup:
    """The processes of all actors.

    Attributes:
        config: as for actor 0, rank 0.
        loss_limit_s: how long the monitor may take to find that an actor is lost, and to ask its host about it.
        workers: for each actor its processes.
        losses: actors that are lost, with the error that says so.
        generations: how often each actor was started.
        saves: references to saves that are under way.
    """

    config: WorkerConfig
    start_limit_s: float
    loss_limit_s: float
    workers: list[list[WorkerProcess]] = field(default_factory=list)
    losses: dict[int, ActorFailed] = field(default_factory=dict)
    generations: list[int] = field(default_factory=list)
    saves: set[Any] = field(default_factory=set)
    _slots: list[_Slot] = field(default_factory=list)
    _placements: list[ActorPlacement] = field(default_factory=list)

    def start(self, placement: ActorPlacement) -> None:
        """Starts every process; JAX is up in all of them when this returns."""
        self._placements.append(placement)
        self._slots = [_Slot(placement=placement, actor=actor) for actor in range(self.config.num_actors)]
        self.generations = [0] * self.config.num_actors
        self.workers = [[] for _ in range(self.config.num_actors)]
        self._launch(range(self.config.num_actors))

    def restart(self, actors: Sequence[int]) -> None:
        """Starts actors again, elsewhere if their host is gone."""
        # All count as lost now, so that the monitor does not wonder about those that are ended here.
        first = next(iter(self.losses.values()))
        losses = {actor: self.losses.get(actor, first) for actor in actors}
        self.losses.update(losses)
        for actor in actors:
            self._end(self.workers[actor], by_force=True)
            self.generations[actor] += 1
        while True:
            self._move(self._on_dead_hosts(actors))
            for actor in actors:
                self.losses.pop(actor, None)
            try:
                self._launch(actors)
                return
            except BaseException as error:
                self.losses.update(losses)
                # Ray takes some seconds to see that a host is gone, and may have tried to start something there.
                if not isinstance(error, MeshError) or not self._on_dead_hosts(actors):
                    raise
            for actor in actors:
                self._end(self.workers[actor], by_force=True)

    def _on_dead_hosts(self, actors: Sequence[int]) -> list[int]:
        """Returns the actors that were placed on a host that is gone, or by a client process that is."""
        alive = {found.host.node_id for found in list_hosts()}
        slots = {actor: self._slots[actor] for actor in actors}
        return [
            actor
            for actor, slot in slots.items()
            if slot.placement.client is not self.client
            or any(host.node_id not in alive for host in slot.placement.hosts[slot.actor])
        ]

    def _move(self, actors: Sequence[int]) -> None:
        """Finds other places for actors."""
        if actors:
            config = self.config
            placement = place_actors(
                len(actors),
                config.num_processes,
                config.num_devices,
                platform=config.platform,
                timeout_s=self.start_limit_s,
            )
            self._placements.append(placement)
            for number, actor in enumerate(actors):
                self._slots[actor] = _Slot(placement=placement, actor=number)

    @property
    def client(self) -> ClientProcess:
        """The client process that is connected to Ray."""
        return current_client()

    def all_workers(self) -> list[WorkerProcess]:
        return [worker for workers in self.workers for worker in workers]

    def living_workers(self) -> list[WorkerProcess]:
        return [worker for worker in self.all_workers() if worker.actor not in self.losses]

    def gather(
        self,
        references: Sequence[Any],
        on_done: Callable[[int], None] | None = None,
        *,
        on_error: Callable[[int, Exception], Exception] | None = None,
    ) -> list[Any]:
        """Waits for all replies.

        Args:
            on_done: called with the number of each reply as it comes.
            on_error: what to raise instead of what a reply raised, given its number.

        Raises:
            ActorFailed: as soon as any actor is lost.
        """
        number = {reference: position for position, reference in enumerate(references)}
        pending = list(references)
        replies: list[Any] = [None] * len(pending)
        while pending:
            done, pending = self._wait(pending)
            for reference in done:
                position = number[reference]
                try:
                    replies[position] = self.get(reference)
                except Exception as error:
                    if on_error is None:
                        raise
                    raise on_error(position, error) from error
                if on_done is not None:
                    on_done(position)
            self.check_losses()
        return replies

    def get(self, reference: Any) -> Any:
        """Waits for a reply and returns it. If its process is gone, waits until the monitor has noticed."""
        while not self._wait([reference])[0]:
            pass
        try:
            return reference.value()
        except WorkerError as error:
            if isinstance(error.cause, TurnOver):
                self._await_losses(0.5)
                raise GivenUp("this was given up, as a step that was queued before it has failed.") from None
            raise error.cause from None
        except (WorkerGone, WorkerUnavailable) as error:
            self._await_losses(self.loss_limit_s)
            gone = ActorFailed(f"an actor's process is gone: {error_lines(error)[0]}")
            gone.is_lost = True
            raise gone from error
        except RayLost:
            self._await_losses(self.loss_limit_s)
            raise

    def _wait(self, references: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Waits a short while for one of some replies; returns which have come, and which not."""
        return wait_for(references, num_returns=1, timeout_s=_TICK_S)

    def finish_saves(self) -> None:
        """Waits until all that is being saved is on disk, or its process is lost."""
        for reference in tuple(self.saves):
            wait_for([reference], num_returns=1, timeout_s=None)
        self.saves.clear()

    def _await_losses(self, limit_s: float) -> None:
        """Gives the monitor some time to notice which actor is lost, and raises its error."""
        until_s = time.monotonic() + limit_s
        while not self.losses and time.monotonic() < until_s:
            time.sleep(0.02)
        self.check_losses()

    def check_losses(self) -> None:
        """Raises the error of a lost actor, if one is lost."""
        for error in self.losses.values():
            again = ActorFailed(*error.args)
            again.__dict__.update(error.__dict__)
            raise again from error.__cause__

    def end(self, workers: Sequence[WorkerProcess]) -> None:
        """Ends what is left of the processes of a lost actor."""
        self._end(workers, by_force=True)

    def forget_cluster(self) -> None:
        """Drops all that belonged to a Ray that is gone; its ids may come again in the next one."""
        self.workers = [[] for _ in self.workers]
        self._placements = []
        self.saves.clear()

    def close(self) -> None:
        """Ends all processes and gives their places back."""
        for workers in self.workers:
            self._end(workers)
        for placement in self._placements:
            placement.close()
        self.workers, self._placements = [], []

    def _launch(self, actors: Iterable[int]) -> None:
        fresh: list[WorkerProcess] = []
        for actor in actors:
            slot = self._slots[actor]
            self.workers[actor] = [
                WorkerProcess(
                    actor=actor,
                    rank=rank,
                    handle=_start_worker(replace(self.config, actor=actor, rank=rank), slot),
                )
                for rank in range(self.config.num_processes)
            ]
            fresh += self.workers[actor]
        infos = self._await_start([worker.handle.describe() for worker in fresh], fresh)
        for worker, info in zip(fresh, infos, strict=True):
            worker.info = info
        coordinators = self._coordinators(fresh)
        self._await_start([worker.handle.start(coordinators[worker.actor]) for worker in fresh], fresh)
        for worker in fresh:
            worker.is_started = True

    def _coordinators(self, fresh: Sequence[WorkerProcess]) -> dict[int, str | None]:
        """Finds the address of each actor's `jax.distributed`; with collectives between actors, one for all."""
        actors = list(dict.fromkeys(worker.actor for worker in fresh))
        if self.config.transport == "collective":
            address = self.gather([self.workers[0][0].handle.offer_coordinator()])[0]
            return dict.fromkeys(actors, address)
        if self.config.num_processes == 1:
            return dict.fromkeys(actors)
        found = self.gather([self.workers[actor][0].handle.offer_coordinator() for actor in actors])
        return dict(zip(actors, found, strict=True))

    def _await_start(self, references: list[Any], workers: Sequence[WorkerProcess]) -> list[Any]:
        end_s, pending = time.monotonic() + self.start_limit_s, references
        while pending and time.monotonic() < end_s:
            _, pending = wait_for(references, num_returns=len(references), timeout_s=_HOSTS_S)
            # Ray never fails a process that waits for a place on a host that is gone.
            if pending and self._on_dead_hosts([worker.actor for worker in workers]):
                raise MeshError("a host was lost while actors were started on it. Try again.")
        if pending:
            late = workers[references.index(pending[0])]
            raise MeshError(
                f"actor {late.actor} (process {late.rank}) on {late.host} did not start within "
                f"{self.start_limit_s:g} s. Is its host busy, or are its devices in use?"
            )
        try:
            return [reference.value() for reference in references]
        except WorkerError as error:
            raise error.cause from None
        except (WorkerGone, WorkerUnavailable) as error:
            raise DiedWhileStarting(f"an actor could not start: {error_lines(error)[0]}") from error

    def _end(self, workers: Sequence[WorkerProcess], *, by_force: bool = False) -> None:
        with contextlib.suppress(MeshError):  # Ray is gone, and ends them, or its connection does.
            for worker in workers:
                worker.handle.kill()
            for worker in workers:
                if by_force and worker.info is not None:
                    kill_process(worker.info.node_id, worker.info.pid)


def devices_per_process(mesh_shape: tuple[int, ...], num_processes: int) -> int:
    """Computes how many devices of an actor's mesh each of its processes has.

    Raises:
        MeshError: if they cannot be shared out equally.
    """
    size = prod(mesh_shape)
    if num_processes < 1 or size % num_processes:
        raise MeshError(
            f"processes_per_actor={num_processes} must divide the {size} devices of an actor's mesh {mesh_shape}."
        )
    return size // num_processes
