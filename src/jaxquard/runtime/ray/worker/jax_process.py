"""Gives a process of an actor its devices and its mesh, before anything else starts JAX there."""

import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AxisType, Mesh

from jaxquard import _jax_compat
from jaxquard.errors import MeshError
from jaxquard.runtime.ray.messages import WorkerConfig
from jaxquard.runtime.transports.peers.listener import is_out_of_reach

_LONGEST_SOCKET_PATH = 107


def apply_settings(settings: Iterable[tuple[str, Any]]) -> None:
    """Applies settings of the controller's JAX."""
    for name, value in settings:
        if name == "jax_compilation_cache_dir" and value != getattr(jax.config, name):
            compilation_cache.reset_cache()  # Which is opened once.
        jax.config.update(name, value)


def configure_jax(config: WorkerConfig) -> None:
    """Applies the settings that must be there before a backend starts."""
    for name, value in config.environment:
        os.environ[name] = value
    apply_settings(config.settings)
    # Values come as the controller made them, 64-bit ones too.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", {"gpu": "cuda"}.get(config.platform, config.platform))
    if config.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", config.num_devices)
        if spans_processes(config):
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # A one-device task then runs in the thread that calls it.
        jax.config.update("jax_cpu_enable_async_dispatch", config.num_devices > 1)


def spans_processes(config: WorkerConfig) -> bool:
    """Returns True if the process is one of several in a `jax.distributed`."""
    return config.num_processes > 1 or config.transport == "collective"


def free_address(ip: str, folder: str | None) -> str:
    """Finds an address at which a coordinator of `jax.distributed` can be started.

    It admits everybody who reaches it. So on one host, where `ip` is on loopback, it is a socket in a folder that other
    users cannot enter, if `folder` is such a one.
    """
    if folder is not None and ipaddress.ip_address(ip).is_loopback and is_out_of_reach(Path(folder)):
        own = tempfile.mkdtemp(prefix="jaxquard-", dir=folder)
        path = f"{own}/coordinator"
        if len(path.encode()) <= _LONGEST_SOCKET_PATH:
            return f"unix:{path}"
        os.rmdir(own)
    with socket.socket() as listener:
        listener.bind((ip, 0))
        return f"{ip}:{listener.getsockname()[1]}"


def join_processes(config: WorkerConfig, coordinator: str, *, ip: str) -> None:
    """Forms one `jax.distributed`: of the actor's processes, or, for collectives between actors, of all.

    Nothing that it opens listens elsewhere than at `ip`, this host's address.
    """
    is_global = config.transport == "collective"
    rank = config.actor * config.num_processes + config.rank if is_global else config.rank
    count = config.num_processes * (config.num_actors if is_global else 1)
    jax.distributed.initialize(
        coordinator, num_processes=count, process_id=rank, coordinator_bind_address=coordinator if rank == 0 else None
    )
    if config.platform == "cpu":
        _jax_compat.bind_gloo(ip)


def make_actor_mesh(config: WorkerConfig) -> Mesh:
    """Makes the actor's mesh over the devices of all its processes.

    Code comes lowered, so no types are left here for axes to be in: all of them are automatic.
    """
    devices = _actor_devices(config)
    needed = prod(config.mesh_shape)
    if len(devices) != needed:
        raise MeshError(
            f"actor {config.actor} needs {needed} {config.platform} devices, but its processes have {len(devices)}."
        )
    shaped = np.array(devices, dtype=object).reshape(config.mesh_shape)
    return Mesh(shaped, config.axis_names, axis_types=(AxisType.Auto,) * len(config.mesh_shape))


def _actor_devices(config: WorkerConfig) -> list[Any]:
    if not spans_processes(config):
        return jax.devices()[: config.num_devices]
    first = config.actor * config.num_processes if config.transport == "collective" else 0
    return [
        device
        for process in range(first, first + config.num_processes)
        for device in [device for device in jax.devices() if device.process_index == process][: config.num_devices]
    ]
