"""Brings the Ray runtime up: Ray itself, places for the processes, the processes, the engine."""

from jaxquard.runtime.ray.crew import Crew, devices_per_process
from jaxquard.runtime.ray.engine import RayEngine
from jaxquard.runtime.ray.messages import WorkerConfig
from jaxquard.runtime.ray.place_actors import place_actors
from jaxquard.runtime.ray.ray_session import start_or_join
from jaxquard.runtime.ray.settings import settings_to_pass_on, variables_to_pass_on
from jaxquard.runtime.ray.versions import check_versions

_START_LIMIT_S = 120.0
_LAST_WORDS_S = 5.0


def start_engine(
    *,
    num_actors: int,
    mesh_shape: tuple[int, ...],
    axis_names: tuple[str, ...],
    address: str | None,
    processes_per_actor: int,
    platform: str | None,
    transport: str,
    silence_limit_s: float,
) -> RayEngine:
    """Starts everything, or leaves nothing behind."""
    num_devices = devices_per_process(mesh_shape, processes_per_actor)
    session = start_or_join(address, num_cpus=num_actors * processes_per_actor)
    try:
        placement = place_actors(num_actors, processes_per_actor, num_devices, platform=platform)
        try:
            if not session.is_private:
                check_versions(host for hosts in placement.hosts for host in hosts)
            crew = Crew(
                config=WorkerConfig(
                    actor=0,
                    num_actors=num_actors,
                    rank=0,
                    num_processes=processes_per_actor,
                    platform=placement.platform,
                    num_devices=num_devices,
                    mesh_shape=mesh_shape,
                    axis_names=axis_names,
                    transport=transport,
                    settings=settings_to_pass_on(),
                    environment=variables_to_pass_on(),
                ),
                start_limit_s=_START_LIMIT_S,
                loss_limit_s=1.5 * silence_limit_s + _LAST_WORDS_S,
            )
            crew.start(placement)
        except BaseException:
            placement.close()
            raise
        return RayEngine(crew, session, silence_limit_s=silence_limit_s)
    except BaseException:
        session.close()
        raise
