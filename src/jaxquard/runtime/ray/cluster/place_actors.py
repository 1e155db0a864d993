"""Finds hosts for the processes of the actors, and reserves them with a placement group.

A bundle of the group is one process: a CPU and its devices, which a bundle keeps on one host. We choose the hosts, so
that the outcome can be foreseen and a refusal can say what is missing: neighbours in the pipeline go next to each
other, and the processes of one actor on one host where one can hold them all.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.cluster.client_process import ClientProcess, current_client
from jaxquard.runtime.ray.cluster.hosts import Host, HostResources, list_hosts

_PLATFORMS = ("cpu", "gpu", "tpu")
_SETTLE_S = 3.0
"""The time that resources of a closed mesh may take to show as free."""
_TICK_S = 1.0
_MAX_HOSTS_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorPlacement:
    """The hosts of the actors' processes, reserved until `close`.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        hosts: for each actor the host of each of its processes.
        devices_per_process: how many devices each process has.
        client: the client process that has reserved them.
        number: the number by which that knows the placement.
    """

    platform: str
    hosts: tuple[tuple[Host, ...], ...]
    devices_per_process: int
    client: ClientProcess
    number: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", self.client.new_number())

    def reserve(self, end_s: float) -> bool:
        """Reserves the hosts: a bundle per process, those of the first actor first.

        Args:
            end_s: when to give up, by the monotonic clock.

        Returns:
            False if that takes too long, or a host is gone: Ray sees that late, and then waits for ever.
        """
        node_ids = [host.node_id for hosts in self.hosts for host in hosts]
        self.client.request("reserve", self.number, bundle(self.platform, self.devices_per_process), node_ids)
        while True:
            tick_s = max(0.0, min(end_s - time.monotonic(), _TICK_S))
            if self.client.request("await_reserved", self.number, tick_s, takes_s=tick_s):
                return True
            alive = {found.host.node_id for found in list_hosts()}
            if time.monotonic() > end_s or not alive.issuperset(node_ids):
                return False

    def start_worker(self, config: bytes, *, actor: int, process: int = 0) -> int:
        """Starts a process of an actor in its place, with a packed configuration; returns its number."""
        number = self.client.new_number()
        position = actor * len(self.hosts[0]) + process
        need = bundle(self.platform, self.devices_per_process)
        self.client.request("start_worker", number, config, self.number, position, need)
        return number

    def close(self) -> None:
        """Releases the hosts; processes that run there are killed."""
        with contextlib.suppress(MeshError):  # Else the cluster is gone, and what was reserved with it.
            self.client.post("give_back", self.number)


def place_actors(
    num_actors: int,
    processes_per_actor: int = 1,
    devices_per_process: int = 1,
    *,
    platform: str | None = None,
    timeout_s: float = 30.0,
) -> ActorPlacement:
    """Reserves a place for every process of every actor.

    Args:
        num_actors: how many actors.
        processes_per_actor: how many processes each has.
        devices_per_process: how many devices each of those has, all on one host.
        platform: "cpu", "gpu" or "tpu"; by default GPUs if the cluster has any, else TPUs, else CPUs.
        timeout_s: how long to wait for places that look free.

    Raises:
        MeshError: if the cluster has too little; the message says what is missing, and what is free where.
    """
    if platform is not None and platform not in _PLATFORMS:
        raise MeshError(f"platform={platform!r} is not known. Use one of: {', '.join(map(repr, _PLATFORMS))}.")
    platform = platform or _default_platform(list_hosts())
    need, end_s = bundle(platform, devices_per_process), time.monotonic() + timeout_s
    while True:
        chosen = _choose_when_free(num_actors, processes_per_actor, need)
        by_actor = [chosen[first : first + processes_per_actor] for first in range(0, len(chosen), processes_per_actor)]
        placement = ActorPlacement(
            platform=platform,
            hosts=tuple(map(tuple, by_actor)),
            devices_per_process=devices_per_process,
            client=current_client(),
        )
        try:
            if placement.reserve(end_s):
                return placement
        except BaseException:
            placement.close()
            raise
        placement.close()
        if time.monotonic() > end_s:
            raise MeshError(
                f"Ray did not reserve {len(chosen)} × {_text(need)} on {_names(chosen)} within {timeout_s:g} s, "
                "though they looked free. Is another program starting there? Try again."
            )


def bundle(platform: str, num_devices: int) -> dict[str, float]:
    """Returns the resources that one process takes of a host, by Ray's names."""
    return {"CPU": 1} if platform == "cpu" else {"CPU": 1, platform.upper(): num_devices}


def choose_hosts(num_actors: int, processes_per_actor: int, capacities: Sequence[int]) -> list[int] | None:
    """Chooses a host for every process, actor by actor; returns positions, or None if there is no room for all.

    Whole actors first, as many as each host can hold. Then the rest fill the gaps, in order.

    Args:
        num_actors: how many actors.
        processes_per_actor: how many processes each has.
        capacities: how many processes each host can hold.
    """
    if sum(capacities) < num_actors * processes_per_actor:
        return None
    whole = [host for host, room in enumerate(capacities) for _ in range(room // processes_per_actor)][:num_actors]
    left = [room - whole.count(host) * processes_per_actor for host, room in enumerate(capacities)]
    gaps = [host for host, room in enumerate(left) for _ in range(room)]
    num_split = (num_actors - len(whole)) * processes_per_actor
    return [host for host in whole for _ in range(processes_per_actor)] + gaps[:num_split]


def _default_platform(hosts: Sequence[HostResources]) -> str:
    for platform in ("gpu", "tpu"):
        if any(host.total.get(platform.upper(), 0) for host in hosts):
            return platform
    return "cpu"


def _choose_when_free(num_actors: int, processes_per_actor: int, need: dict[str, float]) -> list[Host]:
    deadline = time.monotonic() + _SETTLE_S
    while True:
        hosts = list_hosts()
        free = choose_hosts(num_actors, processes_per_actor, [_capacity(host.free, need) for host in hosts])
        if free is not None:
            return [hosts[position].host for position in free]
        ever = choose_hosts(num_actors, processes_per_actor, [_capacity(host.total, need) for host in hosts])
        if ever is None or time.monotonic() > deadline:
            raise MeshError(_missing(num_actors, processes_per_actor, need, hosts))
        time.sleep(0.1)


def _capacity(resources: dict[str, float], need: dict[str, float]) -> int:
    return min(int(resources.get(name, 0) // amount) for name, amount in need.items())


def _missing(num_actors: int, processes_per_actor: int, need: dict[str, float], hosts: Sequence[HostResources]) -> str:
    who = "1 actor" if num_actors == 1 else f"{num_actors} actors"
    who += "" if processes_per_actor == 1 else f" of {processes_per_actor} processes"
    room = sum(_capacity(host.free, need) for host in hosts)
    return (
        f"{who} need{'s' if num_actors == 1 else ''} {num_actors * processes_per_actor} × {_text(need)}, each on one "
        f"host, but the Ray cluster has room for {room}; free: {_free_text(need, hosts)}. {_cure(need, hosts)}"
    )


def _cure(need: dict[str, float], hosts: Sequence[HostResources]) -> str:
    for name, amount in need.items():
        most = max((host.total.get(name, 0) for host in hosts), default=0)
        if most == 0:
            return f'No host has a {name}: use platform="cpu", or start Ray where there are some.'
        if most < amount:
            return f"No host has {amount:g} {name}: use a smaller spmd_mesh, or more processes_per_actor."
    return "Use fewer actors or a smaller spmd_mesh, or add hosts with `ray start --address=HOST:PORT`."


def _free_text(need: dict[str, float], hosts: Sequence[HostResources]) -> str:
    shown = [
        f"{host.host} "
        + ", ".join(f"{host.free.get(name, 0):g} of {host.total.get(name, 0):g} {name}" for name in need)
        for host in hosts[:_MAX_HOSTS_SHOWN]
    ]
    more = len(hosts) - len(shown)
    return "; ".join(shown) + (f"; and {more} more hosts" if more else "")


def _text(need: dict[str, float]) -> str:
    return "(" + ", ".join(f"{amount:g} {name}" for name, amount in need.items()) + ")"


def _names(hosts: Sequence[Host]) -> str:
    return ", ".join(dict.fromkeys(map(str, hosts)))
