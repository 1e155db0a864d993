"""The hosts of the cluster that this process is connected to, and what is free on each."""

from dataclasses import dataclass

from jaxquard.runtime.ray.import_ray import import_ray


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node of the cluster: Ray's id of it, its address and its name."""

    node_id: str
    ip: str
    hostname: str

    def __str__(self) -> str:
        return self.hostname if self.hostname == self.ip else f"{self.hostname} ({self.ip})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """What a host has and what of it is free, by Ray's names: "CPU", "GPU", "TPU"."""

    host: Host
    total: dict[str, float]
    free: dict[str, float]


def list_hosts() -> tuple[HostResources, ...]:
    """Every host that is alive: first the head of the cluster, then the others by address."""
    nodes = [node for node in import_ray().nodes() if node["Alive"]]
    nodes.sort(key=lambda node: ("node:__internal_head__" not in node["Resources"], node["NodeManagerAddress"]))
    free = _free_by_node()
    return tuple(
        HostResources(
            host=Host(node_id=node["NodeID"], ip=node["NodeManagerAddress"], hostname=node["NodeManagerHostname"]),
            total=node["Resources"],
            free=free.get(node["NodeID"], {}),
        )
        for node in nodes
    )


def is_client() -> bool:
    """Whether this process reaches the cluster through Ray's client, with no node of its own."""
    return import_ray().util.client.ray.is_connected()


def _free_by_node() -> dict[str, dict[str, float]]:
    def read() -> dict[str, dict[str, float]]:
        from ray._private.state import available_resources_per_node

        return available_resources_per_node()

    ray = import_ray()
    return ray.get(ray.remote(num_cpus=0)(read).remote()) if is_client() else read()
