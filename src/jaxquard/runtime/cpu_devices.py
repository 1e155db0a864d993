"""CPU devices for actors that compute at the same time (design decision 4).

One CPU client of XLA runs multi-device programs one at a time, even on disjoint devices. So each actor gets a
client of its own. Where JAX no longer lets us make one, the actors get consecutive parts of
`jax.devices("cpu")`: as right, but their multi-device tasks run one after the other.
"""

import itertools
from collections.abc import Sequence

import jax

from jaxquard import _jax_compat
from jaxquard.errors import MeshError


def make_cpu_devices(num_devices: Sequence[int]) -> tuple[tuple[jax.Device, ...], ...]:
    """`num_devices[actor]` devices for each actor.

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
