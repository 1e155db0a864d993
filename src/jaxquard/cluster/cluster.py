"""A cluster: the numbers of its chips, memory and links that the cost models use.

The links carry three kinds of collective (MeshSlice, section 3.2.2), each with its measured constants: bandwidth
along the rows and along the columns of a mesh, the time to synchronise one step of a ring, the time to launch. "Along
the rows" means from row to row, so vertically: the bandwidth that the paper calls inter-row.

The description of the chip goes beyond the paper, which divides the FLOPs of a product by the effective FLOP/s: thin
products run slower, and a product that is sliced along its contracted dim is summed in fp32, which costs memory traffic
and slower kernels (`times/product.py`). In the paper's own sets of constants these numbers are 0 (`is_paper_set`).
"""

import enum
import math
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from jaxquard.cluster.speeds import CollectiveSpeed, GroupCollective, KernelSpeed
from jaxquard.errors import ClusterError
from jaxquard.ir.codec import stored

_POSITIVE = stored(above=0)
_NOT_NEGATIVE = stored(minimum=0)


class Axis(enum.Enum):
    """The two directions of a mesh along which shards move.

    Example:
        >>> jq.cluster.Axis("rows")
        <Axis.ROWS: 'rows'>
    """

    ROWS = "rows"
    COLUMNS = "columns"

    @property
    def other(self) -> "Axis":
        return Axis.COLUMNS if self is Axis.ROWS else Axis.ROWS


class Collective(enum.Enum):
    """The ring operations that have their own cost.

    Example:
        >>> jq.cluster.Collective("all_gather")
        <Collective.ALL_GATHER: 'all_gather'>
    """

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    PERMUTE = "permute"


class Topology(enum.Enum):
    """The interconnect of a cluster.

    On a torus the rows and the columns of a mesh have separate links. On a switch a mesh is virtual, and
    a chip sends along both directions through its one port (section 6).

    Example:
        >>> jq.cluster.load_cluster("tpu-v4").network.topology
        <Topology.TORUS: 'torus'>
    """

    TORUS = "torus"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The compute model of a chip.

    Attributes:
        peak_flops_per_s: that utilisation is measured against.
        effective_flops_per_s: that large products reach.
        half_speed_contracted: the contracted dim at which a product has half of that speed, which is what the start of
            a tile is worth; 0: at any dim it has all.
        half_speed_output: the same for each dim of the output, of a chip without tiles.
        output_exposed: of the time to write an output, or to read and write an fp32 sum, the share that is not hidden.
        accumulate_slowdown: the share by which a product that ends in an fp32 sum is slower than one that does not.
        cast_exposed: of the time to turn an fp32 sum into the output, in a separate pass, the share that is not
            hidden; above 1 where memory does not reach its bandwidth.
        slice_copy_exposed: the same for copying slices out of a shard and into it.
        systolic_dim: rows and columns of the systolic array, to whose multiples the contracted dim and one dim of the
            output are padded; 0: there is none.
        num_cores: that compute a tile of the output each at a time; 0: there are no tiles.
        tile_bandwidth_bytes_per_s: at which one core reads the inputs of its tile; 0: in no time.
        wave_rounding: of the idle share of the last wave of tiles, what is lost; a chip at its power limit loses
            nothing, since idle cores leave power to the others.
        launch_s: to start one product.
        tile: rows and columns of the output that are computed at a time, for the memory traffic of a product.

    Example:
        >>> jq.cluster.Compute(peak_flops_per_s=275e12, effective_flops_per_s=220e12).launch_s
        0.0
    """

    peak_flops_per_s: float = field(metadata=_POSITIVE)
    effective_flops_per_s: float = field(metadata=_POSITIVE)
    half_speed_contracted: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    half_speed_output: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    output_exposed: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    accumulate_slowdown: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    cast_exposed: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    slice_copy_exposed: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    systolic_dim: int = field(default=0, metadata=_NOT_NEGATIVE)
    num_cores: int = field(default=0, metadata=_NOT_NEGATIVE)
    tile_bandwidth_bytes_per_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    wave_rounding: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    launch_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    tile: int = field(default=2048, metadata=_POSITIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of one chip.

    Example:
        >>> jq.cluster.Memory(size_bytes=32 * 2**30, bandwidth_bytes_per_s=1.2e12).size_bytes
        34359738368
    """

    size_bytes: int = field(metadata=_POSITIVE)
    bandwidth_bytes_per_s: float = field(metadata=_POSITIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The interconnect between chips.

    Attributes:
        is_bidirectional: a link carries both ways at once, so that a permute that sends one half of a shard
            each way round a ring has twice the bandwidth.
        launches_each_permute: every permute of a chain costs the permutes' `launch_s`. False where the
            constants were measured on chains, as `calibrate` does: then a chain costs one, and `sync_s` has all that a
            further permute takes.
        hides_one_collective: a product hides one all-gather and no reduce-scatter, as the TPU's compiler schedules
            them (design decision 10); permutes hide beside it. False: whatever does not depend on each other overlaps.
        has_broadcast: a ring has a native broadcast and reduction, each one operation with the launch,
            bandwidth and steps of an all-gather or reduce-scatter, as MeshSlice's simulator has. JAX has none, so
            `gemm` makes them of permutes.
        chips_per_node: chips behind one switch; 0: all of them.
        between_nodes_bandwidth_bytes_per_s: of a chip to another node; 0 where there is one node.
        between_nodes_sync_s: the additional seconds of a step between nodes.

    Example:
        >>> network = jq.cluster.Network(topology=jq.cluster.Topology("torus"), is_bidirectional=True)
        >>> network.chips_per_node
        0
    """

    topology: Topology
    is_bidirectional: bool
    launches_each_permute: bool = True
    hides_one_collective: bool = False
    has_broadcast: bool = False
    chips_per_node: int = field(default=0, metadata=_NOT_NEGATIVE)
    between_nodes_bandwidth_bytes_per_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    between_nodes_sync_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The cost of one kind of collective on the rings of a mesh.

    Example:
        >>> links = jq.cluster.Links(
        ...     row_bandwidth_bytes_per_s=50e9, column_bandwidth_bytes_per_s=50e9, sync_s=1e-6, launch_s=5e-6
        ... )
        >>> links.sync_s
        1e-06
    """

    row_bandwidth_bytes_per_s: float = field(metadata=_POSITIVE)
    column_bandwidth_bytes_per_s: float = field(metadata=_POSITIVE)
    sync_s: float = field(metadata=_NOT_NEGATIVE)
    launch_s: float = field(metadata=_NOT_NEGATIVE)

    def bandwidth_bytes_per_s(self, axis: Axis) -> float:
        return self.row_bandwidth_bytes_per_s if axis is Axis.ROWS else self.column_bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level of a cluster: what joins chips, or units of the level below.

    Attributes:
        dims: the number of units along each dim; a switch has one dim.
        is_torus: a chip has a link each way along every dim, not one port to a switch.
        wraps_at: dims that are multiples of this close to rings; 0: none does.
        bandwidth_bytes_per_s: that a collective reaches, each way: of a chip's port, or of one link of a torus.
        latency_s: of one step.
        launch_s: to begin a collective.
        collectives: the measured speeds of kinds of collectives, in place of these three.

    Example:
        >>> jq.cluster.Level(name="node", dims=(8,), bandwidth_bytes_per_s=360e9, latency_s=3.4e-6).is_torus
        False
    """

    name: str
    dims: tuple[int, ...] = field(metadata=_POSITIVE)
    is_torus: bool = False
    wraps_at: int = field(default=0, metadata=_NOT_NEGATIVE)
    bandwidth_bytes_per_s: float = field(metadata=_POSITIVE)
    latency_s: float = field(metadata=_NOT_NEGATIVE)
    launch_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    collectives: tuple[CollectiveSpeed, ...] = ()

    @property
    def size(self) -> int:
        """The number of units that it joins."""
        return math.prod(self.dims)

    def for_collective(self, kind: GroupCollective) -> "Level":
        """Returns the level with the measured speed of a kind of collective, where there is one."""
        for speed in self.collectives:
            if speed.kind is kind:
                return replace(
                    self,
                    bandwidth_bytes_per_s=speed.bandwidth_bytes_per_s,
                    latency_s=speed.latency_s,
                    launch_s=speed.launch_s,
                )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A description of hardware, as a TOML file holds it.

    Attributes:
        num_chips: maximum number of chips of a mesh.
        levels: what joins chips, innermost first; where there are none they follow from the network (`levels_of`).
        kernels: the measured speeds of kinds of kernels; where there are none, `compute` and `memory` stand for all.
        is_paper_set: the constants are those of MeshSlice's own cost model, which leaves out thin products, fp32 sums,
            copies, and all that keeps a transfer from hiding. They are for the reproduction, not to plan with.

    Example:
        >>> cluster = jq.cluster.load_cluster("tpu-v4")
        >>> cluster.num_chips, f"{cluster.compute.peak_flops_per_s:.3g}", cluster.network.topology.value
        (4096, '2.72e+14', 'torus')
    """

    name: str
    num_chips: int = field(metadata=_POSITIVE)
    compute: Compute
    memory: Memory
    network: Network
    all_gather: Links
    reduce_scatter: Links
    permute: Links
    is_paper_set: bool = False
    levels: tuple[Level, ...] = ()
    kernels: tuple[KernelSpeed, ...] = ()

    def __hash__(self) -> int:
        # Times are kept by cluster and asked for a million times by a tuner: all fields would take most of that time.
        return hash((self.name, self.num_chips))

    def links(self, kind: Collective) -> Links:
        match kind:
            case Collective.ALL_GATHER:
                return self.all_gather
            case Collective.REDUCE_SCATTER:
                return self.reduce_scatter
            case Collective.PERMUTE:
                return self.permute


def check_cluster(cluster: Any) -> None:
    """Raises a ClusterError unless it is a Cluster."""
    if not isinstance(cluster, Cluster):
        raise ClusterError(f"cluster must be a Cluster, but is {cluster!r:.80}. Load one: load_cluster('tpu-v4').")


def check_number(value: Any, name: str, *, is_positive: bool = True) -> None:
    """Raises a ClusterError unless it is a number above 0, or of at least 0."""
    # Nearly all are plain numbers, and `Real` is slow to ask: a tuner checks a million.
    is_number = type(value) in (int, float) or (isinstance(value, Real) and not isinstance(value, bool))
    is_number = is_number and math.isfinite(value)
    if not is_number or value < 0 or (is_positive and value == 0):
        raise ClusterError(f"{name} must be a number {'above 0' if is_positive else 'of 0 or more'}, but is {value!r}.")
