"""Starts the Ray runtime: Ray itself, places for the processes, the processes, the engine."""

from jax.sharding import AbstractMesh

from jaxquard.runtime.ray.cluster.place_actors import place_actors
from jaxquard.runtime.ray.cluster.session import start_or_join
from jaxquard.runtime.ray.cluster.versions import check_versions
from jaxquard.runtime.ray.controller.engine import RayEngine
from jaxquard.runtime.ray.controller.jax_settings import settings_to_pass_on, variables_to_pass_on
from jaxquard.runtime.ray.controller.worker_group import WorkerGroup, devices_per_process
from jaxquard.runtime.ray.messages import WorkerConfig

_POST_MORTEM_S = 5.0


def start_engine(
    *,
    num_actors: int,
    mesh: AbstractMesh,
    address: str | None,
    processes_per_actor: int,
    platform: str | None,
    transport: str,
    heartbeat_timeout_s: float,
    start_timeout_s: float,
) -> RayEngine:
    """Starts everything, or leaves nothing behind."""
    num_devices = devices_per_process(mesh.axis_sizes, processes_per_actor)
    session = start_or_join(address, num_cpus=num_actors * processes_per_actor, start_timeout_s=start_timeout_s)
    try:
        placement = place_actors(
            num_actors, processes_per_actor, num_devices, platform=platform, timeout_s=start_timeout_s
        )
        try:
            if not session.is_private:
                check_versions(host for hosts in placement.hosts for host in hosts)
            group = WorkerGroup(
                config=WorkerConfig(
                    actor=0,
                    num_actors=num_actors,
                    rank=0,
                    num_processes=processes_per_actor,
                    platform=placement.platform,
                    num_devices=num_devices,
                    mesh_shape=mesh.axis_sizes,
                    axis_names=mesh.axis_names,
                    transport=transport,
                    settings=settings_to_pass_on(),
                    environment=variables_to_pass_on(),
                ),
                start_limit_s=start_timeout_s,
                loss_limit_s=1.5 * heartbeat_timeout_s + _POST_MORTEM_S,
            )
            group.start(placement)
        except BaseException:
            placement.close()
            raise
        return RayEngine(group, session, mesh=mesh, heartbeat_timeout_s=heartbeat_timeout_s)
    except BaseException:
        session.close()
        raise
