"""Speeds as calibration measures them: of the kinds of kernels on a chip, and of the kinds of collectives.

They refine the constants of `Compute`, `Memory` and `Level`, which stand where a file has none of these. Each says how
well its constants explain the samples that they were fitted to.
"""

import enum
from dataclasses import dataclass, field

from jaxquard.ir.codec import stored

_POSITIVE = stored(above=0)
_NOT_NEGATIVE = stored(minimum=0)


class GroupCollective(enum.Enum):
    """The collectives of a group of devices.

    Example:
        >>> [kind.value for kind in jq.cluster.GroupCollective]
        ['all_gather', 'reduce_scatter', 'all_reduce', 'all_to_all', 'permute']
    """

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    PERMUTE = "permute"


class KernelKind(enum.Enum):
    """The kinds of kernels that compiled programs consist of.

    A reduction sums over the last dim, a column reduction over the first.

    Example:
        >>> jq.cluster.KernelKind("softmax")
        <KernelKind.SOFTMAX: 'softmax'>
    """

    PRODUCT = "product"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COLUMN_REDUCTION = "column_reduction"
    SOFTMAX = "softmax"
    TRANSPOSE = "transpose"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpeed:
    """The speed of a kind of kernel on one chip (`kernel_time_s`).

    Attributes:
        dtype: of its inputs, as HLO writes it: `bf16`, `f32`.
        flops_per_s: that large ones reach; 0 where arithmetic takes no time.
        bandwidth_bytes_per_s: at which they read and write memory; 0 where that takes no time.
        exposed: of the shorter of both times, the share that is not hidden behind the longer one.
        half_speed_contracted: the contracted dim at which a product has half of its speed; 0: at any dim it has all.
        half_speed_output: the same for each dim of the output.
        launch_s: to start one.
        num_samples: that the constants were fitted to.
        median_error: median relative error of the fit on its samples; `worst_error` the largest one.

    Example:
        >>> speed = jq.cluster.KernelSpeed(
        ...     kind=jq.cluster.KernelKind("elementwise"), dtype="bf16", bandwidth_bytes_per_s=4e12, launch_s=2e-6
        ... )
        >>> speed.exposed
        0.0
    """

    kind: KernelKind
    dtype: str
    flops_per_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    bandwidth_bytes_per_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    exposed: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    half_speed_contracted: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    half_speed_output: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    launch_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    num_samples: int = field(default=0, metadata=_NOT_NEGATIVE)
    median_error: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    worst_error: float = field(default=0.0, metadata=_NOT_NEGATIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSpeed:
    """The speed of one kind of collective at a level, in place of the level's own (`group_time_s`).

    Attributes:
        bandwidth_bytes_per_s: of a chip's port, or of one link of a torus, each way.
        latency_s: of one step.
        launch_s: to begin one.
        num_samples: that the constants were fitted to.
        median_error: median relative error of the fit on its samples; `worst_error` the largest one.

    Example:
        >>> speed = jq.cluster.CollectiveSpeed(
        ...     kind=jq.cluster.GroupCollective("all_reduce"), bandwidth_bytes_per_s=3e11, latency_s=3e-6, launch_s=9e-6
        ... )
        >>> speed.num_samples
        0
    """

    kind: GroupCollective
    bandwidth_bytes_per_s: float = field(metadata=_POSITIVE)
    latency_s: float = field(metadata=_NOT_NEGATIVE)
    launch_s: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    num_samples: int = field(default=0, metadata=_NOT_NEGATIVE)
    median_error: float = field(default=0.0, metadata=_NOT_NEGATIVE)
    worst_error: float = field(default=0.0, metadata=_NOT_NEGATIVE)
