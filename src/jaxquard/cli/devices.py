"""The devices that a command works on. JAX starts here, with as many virtual CPU devices as are wanted."""

import contextlib
import math

import jax
from jax.sharding import Mesh

from jaxquard.cli.exit_codes import UsageError
from jaxquard.errors import InfeasibleError
from jaxquard.pricing.measure.machine.steady_cpu import make_cpu_steady

NUM_CPU_DEVICES = 8
# The names that the command line gives to the axes of a mesh.
AXES = {1: ("devices",), 2: ("outer", "inner")}


def start_devices(*, cpu: bool) -> list[jax.Device]:
    """Starts JAX and returns its devices; of the CPU there are 8 virtual ones, unless JAX has started before."""
    _choose_devices(cpu=cpu, num_cpu_devices=NUM_CPU_DEVICES)
    return jax.devices()


def prepare_devices(*, cpu: bool, num_devices: int | None, sizes: tuple[int, ...] | None) -> None:
    """Says how many virtual CPU devices there shall be; JAX itself starts later, unless it has already."""
    if num_devices is not None and sizes is not None and math.prod(sizes) > num_devices:
        raise UsageError(_does_not_fit(sizes, f"--devices is {num_devices}"))
    make_cpu_steady()
    _choose_devices(cpu=cpu, num_cpu_devices=num_devices or (math.prod(sizes) if sizes else NUM_CPU_DEVICES))


def _choose_devices(*, cpu: bool, num_cpu_devices: int) -> None:
    if cpu:
        jax.config.update("jax_platforms", "cpu")
    # Where JAX has started already, it has the devices that it has.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", num_cpu_devices)


def start_mesh(sizes: tuple[int, ...] | None, *, num_devices: int | None) -> Mesh:
    """Makes a mesh of the first devices: of these sizes, or of all there are, or so many, along one axis."""
    devices = jax.devices()
    if num_devices is not None and num_devices > len(devices):
        raise InfeasibleError(
            f"--devices is {num_devices}, but JAX has {_in_words(devices)}. Give --devices {len(devices)}."
        )
    if sizes is None and num_devices is None and len(devices) == 1:
        raise InfeasibleError(
            f"JAX has one device, of the platform {devices[0].platform}, and on one there is nothing to shard. Use "
            "--cpu for 8 virtual CPU devices, or --mesh 1 to go on anyway."
        )
    sizes = sizes or (num_devices or len(devices),)
    if math.prod(sizes) > len(devices):
        raise InfeasibleError(_does_not_fit(sizes, f"JAX has {_in_words(devices)}"))
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.make_mesh(sizes, AXES[len(sizes)], axis_types=types, devices=devices[: math.prod(sizes)])


def mesh_axes(sizes: tuple[int, ...]) -> dict[str, int]:
    """Returns sizes with the names that the command line gives to axes."""
    return dict(zip(AXES[len(sizes)], sizes, strict=True))


def _in_words(devices: list[jax.Device]) -> str:
    return f"{len(devices)} of the platform {devices[0].platform}"


def _does_not_fit(sizes: tuple[int, ...], found: str) -> str:
    mesh = "x".join(map(str, sizes))
    return f"--mesh {mesh} has {math.prod(sizes)} devices, but {found}. Give a smaller mesh."
