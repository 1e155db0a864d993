"""The chips whose compilers can be asked, and what these need to know of them beside a cluster's figures.

GPU: the fields of XLA's description of a device (`gpu_device_info`), from NVIDIA's CUDA programming guide (compute
capabilities) and the data sheets that the presets name. TPU: the products that a core's matrix units do in a cycle, as
libtpu estimates them for large matrices; with the peak FLOP/s of the cluster that gives the clock of its cycles.
"""

from dataclasses import dataclass

from jaxquard.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChip:
    """A GPU for XLA's compiler.

    Attributes:
        capability: its compute capability, or the oldest that the compiler of CUDA 13 knows.
        core_count: streaming multiprocessors.
    """

    description: str
    capability: tuple[int, int]
    core_count: int
    fpus_per_core: int
    shared_memory_per_core: int
    l2_cache_bytes: int
    clock_ghz: float

    def target_config(self, *, memory_bytes: int, bandwidth_bytes_per_s: float) -> str:
        """Returns the description as XLA's text proto."""
        fields = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": self.shared_memory_per_core,
            "threads_per_core_limit": 2048,
            "core_count": self.core_count,
            "fpus_per_core": self.fpus_per_core,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": int(bandwidth_bytes_per_s),
            "l2_cache_size": self.l2_cache_bytes,
            "clock_rate_ghz": self.clock_ghz,
            "device_memory_size": memory_bytes,
            # A block can have all but 1 KiB.
            "shared_memory_per_block_optin": self.shared_memory_per_core - 1024,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        text = " ".join(f"{name}: {value}" for name, value in fields.items())
        major, minor = self.capability
        return (
            f"gpu_device_info {{ {text} cuda_compute_capability {{ major: {major} minor: {minor} }} }}\n"
            f'platform_name: "CUDA"\ndnn_version_info {{ major: 9 minor: 10 patch: 0 }}\n'
            f'device_description_str: "{self.description}"\n'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuChip:
    """A TPU for its compiler.

    Attributes:
        generation: as in the names of topologies, such as v5e in `v5e:4x4`.
        flops_per_cycle: of the matrix units of the cores that the compiler is asked for. Of a v4 that is one of two, so
            that its cycles are counted at the speed of both.
    """

    generation: str
    flops_per_cycle: int


_GPUS = {
    # Of compute capability 7.0, which CUDA 13 has dropped: it compiles for 7.5, with the V100's own figures.
    "v100": GpuChip(
        description="Tesla V100-SXM2-16GB",
        capability=(7, 5),
        core_count=80,
        fpus_per_core=64,
        shared_memory_per_core=98304,
        l2_cache_bytes=6 * 2**20,
        clock_ghz=1.53,
    ),
    "a100": GpuChip(
        description="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        core_count=108,
        fpus_per_core=64,
        shared_memory_per_core=167936,
        l2_cache_bytes=40 * 2**20,
        clock_ghz=1.41,
    ),
    "h100": GpuChip(
        description="NVIDIA H100 80GB HBM3",
        capability=(9, 0),
        core_count=132,
        fpus_per_core=128,
        shared_memory_per_core=233472,
        l2_cache_bytes=50 * 2**20,
        clock_ghz=1.98,
    ),
    "h200": GpuChip(
        description="NVIDIA H200",
        capability=(9, 0),
        core_count=132,
        fpus_per_core=128,
        shared_memory_per_core=233472,
        l2_cache_bytes=50 * 2**20,
        clock_ghz=1.98,
    ),
    "b200": GpuChip(
        description="NVIDIA B200",
        capability=(10, 0),
        core_count=148,
        fpus_per_core=128,
        shared_memory_per_core=233472,
        l2_cache_bytes=126 * 2**20,
        clock_ghz=1.965,
    ),
}
_TPUS = {
    "tpu-v4": TpuChip(generation="v4", flops_per_cycle=131072),
    "v5e": TpuChip(generation="v5e", flops_per_cycle=131072),
    "v5p": TpuChip(generation="v5p", flops_per_cycle=262144),
    "v6e": TpuChip(generation="v6e", flops_per_cycle=524288),
}


def find_chip(cluster_name: str) -> GpuChip | TpuChip | None:
    """Returns the chip that a word of a cluster's name begins with, as in "calibrated h100-8"; None for CPUs.

    Raises:
        ClusterError: if no word begins with a chip that a compiler can be asked for.
    """
    known: dict[str, GpuChip | TpuChip | None] = {**_GPUS, **_TPUS, "cpu": None}
    for word in cluster_name.lower().split():
        found = [chip for chip in known if word == chip or word.startswith(f"{chip}-")]
        if found:
            return known[max(found, key=len)]
    raise ClusterError(
        f"the cluster is called {cluster_name!r}, but no compiler is known for it. Give it a name that begins with its "
        f"chip: {', '.join(known)}, such as h100-8x4."
    )
