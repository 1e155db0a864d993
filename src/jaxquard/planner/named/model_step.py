"""The step of a transformer that is planned: the model, the batch, the cluster, and the limit of memory."""

from dataclasses import dataclass, field

from jaxquard.cluster import ChipSpeeds
from jaxquard.cluster.cluster import Cluster
from jaxquard.pricing.model.group_times import GroupTimes
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.price_step import StepPrice, price_step
from jaxquard.pricing.model.system import SystemProfile
from jaxquard.pricing.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """A training step of a transformer on all chips of a cluster.

    Attributes:
        system: the constants of the framework that every strategy is priced with.
        global_batch: sequences of a step.
        dtype: of products.
        limit_bytes: of memory on a chip.
        chip: instead of the cluster's own.
    """

    transformer: Transformer
    cluster: Cluster
    system: SystemProfile
    global_batch: int
    dtype: str = "bf16"
    limit_bytes: float
    chip: ChipSpeeds | None = field(default=None, repr=False)

    @property
    def num_devices(self) -> int:
        """The chips of the cluster; a plan has them all."""
        return self.cluster.num_chips

    @property
    def flops(self) -> float:
        """Model FLOPs of a step: all pairs of tokens in attention, as Megatron counts, and no recomputation."""
        return self.transformer.flops_per_token() * self.transformer.seq * self.global_batch

    def mfu(self, time_s: float) -> float:
        """Returns model FLOPs over the peak of all chips in the precision of the products."""
        peak = self.cluster.compute.peak_flops_per_s * (2 if self.dtype in ("fp8", "fp4") else 1)
        return self.flops / (time_s * peak * self.num_devices)

    def price(self, parallelism: Parallelism) -> StepPrice:
        """Prices a strategy in closed form."""
        return price_step(self.transformer, parallelism, self.cluster, self.system, chip=self.chip)

    def group_times(self, parallelism: Parallelism) -> GroupTimes:
        """Returns the times of the collectives of a strategy."""
        return GroupTimes(self.cluster, parallelism, self.chip)
