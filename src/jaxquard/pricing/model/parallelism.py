"""A strategy by its degrees: how a training step is spread over devices.

Devices are numbered with tensor parallelism innermost, then context, then data (and FSDP), then pipeline stages, as
Megatron places them: so tensor groups stay in a host, and the stages' messages cross hosts. Expert groups are made of
data ranks, and of tensor ranks where these do not suffice.
"""

from dataclasses import dataclass

from jaxquard.errors import StepPriceError
from jaxquard.pricing.model.transformer import check_count

RECOMPUTES = ("none", "selective", "full")
SCHEDULES_BY_MODEL = ("none", "gpipe", "1f1b", "interleaved", "zero-bubble")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The degrees of each kind of parallelism, the batch, and the recomputation.

    Attributes:
        tensor: devices that share each product.
        sequence: norms and residuals are sharded over the tensor group too (sequence parallelism).
        context: devices that share a sequence.
        pipeline: actors of the pipeline.
        num_chunks: stages an actor; more than 1 is an interleaved schedule.
        data: replicas of the batch's share, FSDP's among them.
        zero: 0: every replica has all state; 1: it shards the optimizer's; 2: gradients too; 3: parameters too (FSDP).
        shard_group: devices that share a sharded state; 0: all of `data`. Fewer is hybrid sharding.
        expert: devices that share the experts of a layer.
        expert_tensor: devices that share each expert's products; 0: `tensor`.
        microbatch: sequences of one microbatch on one replica.
        global_batch: sequences of a step.
        recompute: "none", "selective" (attention's scores) or "full" (a layer keeps its input alone).
        recompute_share: of the layers that recompute, where recompute is "full".
        schedule: of the pipeline: "none", "gpipe", "1f1b", "interleaved" or "zero-bubble".
        dtype: of products: "bf16", "fp16", "fp8", "fp4" or "fp32".

    Example:
        >>> parallelism = jq.pricing.Parallelism(tensor=8, pipeline=8, data=2, microbatch=4, global_batch=256)
        >>> parallelism.num_devices, parallelism.num_microbatches
        (128, 32)
    """

    tensor: int = 1
    sequence: bool = False
    context: int = 1
    pipeline: int = 1
    num_chunks: int = 1
    data: int = 1
    zero: int = 0
    shard_group: int = 0
    expert: int = 1
    expert_tensor: int = 0
    microbatch: int = 1
    global_batch: int = 1
    recompute: str = "none"
    recompute_share: float = 1.0
    schedule: str = "1f1b"
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        counts = ("tensor", "context", "pipeline", "num_chunks", "data", "expert", "microbatch", "global_batch")
        for name in counts:
            check_count(getattr(self, name), name, minimum=1)
        for name in ("shard_group", "expert_tensor"):
            check_count(getattr(self, name), name)
        if not 0 <= self.recompute_share <= 1:
            raise StepPriceError(f"recompute_share must be between 0 and 1, but is {self.recompute_share!r}.")
        if self.zero not in (0, 1, 2, 3):
            raise StepPriceError(f"zero must be 0, 1, 2 or 3, but is {self.zero!r}.")
        if self.recompute not in RECOMPUTES:
            raise StepPriceError(f"recompute must be one of {', '.join(RECOMPUTES)}, but is {self.recompute!r}.")
        if self.schedule not in SCHEDULES_BY_MODEL:
            raise StepPriceError(f"schedule must be one of {', '.join(SCHEDULES_BY_MODEL)}, but is {self.schedule!r}.")
        if self.shard_group and self.data % self.shard_group:
            raise StepPriceError(
                f"state is sharded over {self.shard_group} devices, but {self.data} replicas do not divide into "
                f"groups of {self.shard_group}. Give a shard_group that divides data={self.data}."
            )

    @property
    def num_devices(self) -> int:
        """Devices of the whole step."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step on each replica; the last one may be smaller."""
        return max(1, -(-self.global_batch // (self.data * self.microbatch)))

    @property
    def num_shards(self) -> int:
        """Devices that share the state that ZeRO shards."""
        return (self.shard_group or self.data) if self.zero else 1

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return self.pipeline * self.num_chunks
