"""Figure 10: what communication takes at 256 chips, relative to the products' own time, hidden or not."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxquard.evaluate.meshslice.figures.scaling import ScalingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """One bar; below 1 all of it could be hidden."""

    model: str
    algorithm: str
    launch: float
    transfer: float
    sync: float

    @property
    def total(self) -> float:
        return self.launch + self.transfer + self.sync


def communication_breakdown(points: Iterable[ScalingPoint], *, num_chips: int = 256) -> tuple[Breakdown, ...]:
    """From the points of Figure 9."""
    return tuple(
        Breakdown(
            model=point.model,
            algorithm=point.algorithm,
            launch=point.launch_s / point.compute_s,
            transfer=point.transfer_s / point.compute_s,
            sync=point.sync_s / point.compute_s,
        )
        for point in points
        if point.num_chips == num_chips
    )
