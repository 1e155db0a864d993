"""Which devices a subcommand measures on."""

import contextlib

import jax

_NUM_CPU_DEVICES = 8


def start_devices(*, cpu: bool) -> list[jax.Device]:
    """JAX's devices; of the CPU there are 8 virtual ones, unless JAX has started with another number already."""
    if cpu:
        jax.config.update("jax_platforms", "cpu")
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", _NUM_CPU_DEVICES)
    return jax.devices()
