"""A configuration of a plan: everything but the segments of each stage and their strategies."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.stages.segment_costs import PipelineShape

# The parts of a configuration that wishes name; any other name is a mesh axis.
PARTS = ("schedule", "stages", "actors", "microbatches", "microbatch_size", "recompute", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfiguration:
    """The pipeline, the mesh of each actor, the microbatches, and what is kept and stored.

    Attributes:
        axes: the axes of each actor's mesh and their sizes, the outer one first.
        microbatch_size: rows of the batch in one microbatch, over all devices of an actor.
        schedule: its name in `schedules.SCHEDULES`; "none" for one actor.
        recompute: the activations that the backward computes again.
        storage: the layout of state between steps, such as "as used" or "zero 1".
    """

    num_actors: int
    num_stages: int
    axes: tuple[tuple[str, int], ...]
    microbatch_size: int
    num_microbatches: int
    schedule: str
    recompute: Recompute = Recompute.NONE
    storage: str = "as used"

    @property
    def shape(self) -> PipelineShape:
        """The shape of the pipeline."""
        return PipelineShape(
            num_actors=self.num_actors,
            num_stages=self.num_stages,
            schedule=self.schedule,
            num_microbatches=self.num_microbatches,
        )

    @property
    def mesh(self) -> dict[str, int]:
        """The axes of each actor's mesh and their sizes."""
        return dict(self.axes)

    @property
    def priced_as(self) -> tuple[Any, ...]:
        """The parts on which the costs of segments depend: configurations that agree in them have the same."""
        return self.axes, self.microbatch_size, self.num_microbatches, self.recompute, self.storage

    def part(self, name: str) -> Any:
        """Returns the value of a part by its name; of an axis that the mesh lacks, 1."""
        values = {
            "schedule": self.schedule,
            "stages": self.num_stages,
            "actors": self.num_actors,
            "microbatches": self.num_microbatches,
            "microbatch_size": self.microbatch_size,
            "recompute": self.recompute.value,
            "storage": self.storage,
        }
        return values[name] if name in values else self.mesh.get(name, 1)

    def meets(
        self,
        fixed: Mapping[str, Any],
        forbidden: Mapping[str, Collection[Any]],
        one_of: Mapping[str, Collection[Any]] | None = None,
    ) -> bool:
        """Says whether all parts are as wished."""
        return (
            all(self.part(name) == _plain(value) for name, value in fixed.items())
            and all(self._is_in(name, values) for name, values in (one_of or {}).items())
            and not any(self._is_in(name, values) for name, values in forbidden.items())
        )

    def _is_in(self, name: str, values: Collection[Any]) -> bool:
        return self.part(name) in [_plain(value) for value in values]

    def __str__(self) -> str:
        mesh = " x ".join(f"{name} {size}" for name, size in self.axes)
        stages = f"{self.num_stages} stage{'s' * (self.num_stages > 1)} on {self.num_actors}"
        return (
            f"{stages} actor{'s' * (self.num_actors > 1)} of {mesh}, {self.schedule}, {self.num_microbatches} "
            f"microbatches of {self.microbatch_size}, recompute {self.recompute.value}, {self.storage}"
        )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Recompute) else value
