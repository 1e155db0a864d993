"""The devices of each actor of this process (design decision 4).

One CPU client of XLA runs multi-device programs one at a time, even on disjoint devices. So each actor gets its own
client. Where JAX no longer lets us make one, the actors get consecutive parts of `jax.devices("cpu")`: the same
results, but their multi-device tasks run one after the other. Accelerators are taken in order, or shared.
"""

import itertools
from collections.abc import Sequence

import jax

from jaxquard import _jax_compat
from jaxquard.errors import MeshError


def find_devices(
    num_actors: int, per_actor: int, devices: Sequence[jax.Device] | None, share: bool
) -> Sequence[Sequence[jax.Device]]:
    """Returns the devices of each actor.

    Raises:
        MeshError: if there are too few.
    """
    if devices is None:
        if jax.default_backend() == "cpu":
            return make_cpu_devices([per_actor] * num_actors)
        devices = jax.devices()
    needed = num_actors * per_actor
    if len(devices) >= needed:
        return [devices[actor * per_actor : (actor + 1) * per_actor] for actor in range(num_actors)]
    if share and len(devices) >= per_actor:
        groups = len(devices) // per_actor
        starts = [(actor % groups) * per_actor for actor in range(num_actors)]
        return [devices[start : start + per_actor] for start in starts]
    cure = "" if len(devices) < per_actor else ", or pass share_devices=True to let actors share devices"
    raise MeshError(
        f"{num_actors} actors of {per_actor} devices need {needed} devices, but there are {len(devices)} "
        f"({devices[0].platform}). Use fewer actors or a smaller spmd_mesh{cure}."
    )


def make_cpu_devices(num_devices: Sequence[int]) -> tuple[tuple[jax.Device, ...], ...]:
    """Makes `num_devices[actor]` devices for each actor.

    Raises:
        MeshError: if they come from `jax.devices("cpu")` and there are too few.
    """
    return _jax_compat.make_cpu_clients(num_devices) or _split_cpu_devices(num_devices)


def _split_cpu_devices(num_devices: Sequence[int]) -> tuple[tuple[jax.Device, ...], ...]:
    devices = jax.devices("cpu")
    if len(devices) < sum(num_devices):
        raise MeshError(
            f"the mesh needs {sum(num_devices)} CPU devices, but this process has {len(devices)}. "
            f'Call jax.config.update("jax_num_cpu_devices", {sum(num_devices)}) before anything uses JAX.'
        )
    remaining = iter(devices)
    return tuple(tuple(itertools.islice(remaining, count)) for count in num_devices)
