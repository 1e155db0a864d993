"""The target of a cluster: the compiler to ask, and its description of the chips and of how they are joined."""

import functools
import importlib.metadata
import importlib.util
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jaxlib

from jaxquard._install_hint import install_hint
from jaxquard.cluster import Cluster, Level, levels_of
from jaxquard.errors import ClusterError, InfeasibleError
from jaxquard.pricing.target.chips import GpuChip, TpuChip, find_chip

# libtpu reads them when it is loaded: ask no metadata service, share the library between processes, keep quiet.
_TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
_CUDA_ENVIRONMENT = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
_CUDA_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
# The packages whose versions decide what is compiled.
_PACKAGES = {
    "cuda": ("jax-cuda13-plugin", "jax-cuda13-pjrt", "jax-cuda12-plugin", "jax-cuda12-pjrt"),
    "tpu": ("libtpu",),
    "cpu": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTarget:
    """A compiler, with the devices that it compiles for.

    Attributes:
        platform: "cuda", "tpu" or "cpu", as JAX lowers for it.
        topology: as `jax.experimental.topologies` takes it: `v5e:4x4`, or `1x4x8` for 4 hosts of 8 GPUs.
        config: the description of a GPU, as XLA's text proto.
        mesh_shape: the sizes of the mesh's axes.
        dims: of a TPU's torus.
        environment: variables of the process that compiles.
        device_kind: for people.
    """

    platform: str
    topology: str
    config: str = field(default="", repr=False)
    mesh_shape: tuple[int, ...]
    dims: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    device_kind: str

    @property
    def num_devices(self) -> int:
        return math.prod(self.mesh_shape)

    @property
    def compiler_version(self) -> str:
        """The packages that decide the compiled program, with their versions."""
        found = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
        found |= {package: version for package in _PACKAGES[self.platform] if (version := _version(package))}
        return ", ".join(f"{name} {version}" for name, version in found.items())


def find_target(cluster: Cluster, mesh_shape: tuple[int, ...]) -> CompileTarget:
    """Returns the target for a mesh over the first chips of a cluster.

    Raises:
        ClusterError: if no compiler is known for the cluster's chips, or the mesh does not fit them.
        InfeasibleError: if the compiler is not installed; it says how to, or why it cannot be here.
    """
    chip, levels, num_devices = find_chip(cluster.name), levels_of(cluster), math.prod(mesh_shape)
    if num_devices > cluster.num_chips:
        raise ClusterError(f"the mesh has {num_devices} devices, but {cluster.name} has {cluster.num_chips} chips.")
    if isinstance(chip, GpuChip):
        _require_cuda()
        config = chip.target_config(
            memory_bytes=cluster.memory.size_bytes, bandwidth_bytes_per_s=cluster.memory.bandwidth_bytes_per_s
        )
        return CompileTarget(
            platform="cuda",
            topology=_hosts(cluster, levels[0], num_devices),
            config=config,
            mesh_shape=mesh_shape,
            environment=_CUDA_ENVIRONMENT,
            device_kind=chip.description,
        )
    if isinstance(chip, TpuChip):
        return _tpu_target(cluster, chip, levels, mesh_shape)
    return CompileTarget(platform="cpu", topology="", mesh_shape=mesh_shape, device_kind="cpu")


def _hosts(cluster: Cluster, host: Level, num_devices: int) -> str:
    """Returns `1x4x8` for 4 hosts of 8 GPUs."""
    if num_devices <= host.size:
        return f"1x1x{num_devices}"
    if num_devices % host.size:
        raise ClusterError(
            f"the mesh has {num_devices} devices, which fill no whole number of {cluster.name}'s hosts of {host.size}. "
            f"Take a mesh of {num_devices // host.size * host.size}."
        )
    return f"1x{num_devices // host.size}x{host.size}"


def _tpu_target(
    cluster: Cluster, chip: TpuChip, levels: tuple[Level, ...], mesh_shape: tuple[int, ...]
) -> CompileTarget:
    _require_tpu()
    dims, num_devices = levels[0].dims, math.prod(mesh_shape)
    shape = "x".join(map(str, dims))
    if num_devices != math.prod(dims):
        raise ClusterError(
            f"the mesh has {num_devices} devices, but a TPU's compiler compiles for whole slices, and that of "
            f"{cluster.name} is {shape}. Name a slice of {num_devices} chips, or take a mesh of {math.prod(dims)}."
        )
    return CompileTarget(
        platform="tpu",
        topology=f"{chip.generation}:{shape}",
        mesh_shape=mesh_shape,
        dims=dims,
        environment=_TPU_ENVIRONMENT,
        device_kind=f"TPU {chip.generation}",
    )


def _require_tpu() -> None:
    if _is_installed("libtpu"):
        return
    machine = platform.machine()
    if machine != "x86_64":
        raise InfeasibleError(
            f"compiling for a TPU needs libtpu, which exists for x86-64 only, but this machine is {machine}. Use an "
            "x86-64 machine; it needs no TPU. For a GPU any Linux machine will do."
        )
    raise InfeasibleError(
        f"compiling for a TPU needs libtpu, which is not installed. No TPU is needed. {install_hint('tpu')}"
    )


def _require_cuda() -> None:
    if not any(map(_is_installed, _CUDA_PLUGINS)):
        raise InfeasibleError(
            "compiling for a GPU needs JAX's CUDA plugin, which is not installed. No GPU is needed. "
            f"{install_hint('cuda-compiler')}"
        )
    found = {package: version for package in _PACKAGES["cuda"] if (version := _version(package)) is not None}
    other = {package: version for package, version in found.items() if version != jaxlib.__version__}
    if other:
        names = " ".join(f"{package}=={jaxlib.__version__}" for package in found)
        raise InfeasibleError(
            f"compiling for a GPU needs JAX's CUDA plugin in the version of jaxlib, {jaxlib.__version__}, but found "
            f"{', '.join(f'{package} {version}' for package, version in other.items())}. Run: pip install {names}"
        )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
