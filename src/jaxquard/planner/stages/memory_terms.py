"""The memory of an assignment by what it holds, counted as the search counts it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxquard.planner.record.plan import MemoryTerms
from jaxquard.planner.stages.schedule_profile import ScheduleProfile
from jaxquard.planner.stages.segment_costs import SegmentCosts, StageAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumMemory:
    """The assignment of the smallest memory.

    Attributes:
        size_bytes: of the fullest device.
        terms: the same, by what they hold.
        is_proven: whether no other assignment needs less.
    """

    size_bytes: int
    terms: MemoryTerms
    assignment: StageAssignment
    is_proven: bool = True

    @property
    def largest_term(self) -> str:
        """The term that holds most of it: "weights", "gradients", "optimizer", "activations" or "working"."""
        sizes = {
            "weights": self.terms.weight_bytes,
            "gradients": self.terms.gradient_bytes,
            "optimizer": self.terms.optimizer_bytes,
            "activations": self.terms.activation_bytes,
            "working": self.terms.working_bytes,
        }
        return max(sizes, key=lambda name: sizes[name])


def count_memory_terms(
    chain: Sequence[SegmentCosts], assignment: StageAssignment, profile: ScheduleProfile
) -> tuple[MemoryTerms, ...]:
    """Returns the memory of each actor by what it holds, counted as the search counts it."""
    starts = (0, *assignment.stops[:-1])
    costs = [segment.strategies[chosen] for segment, chosen in zip(chain, assignment.strategies, strict=True)]
    stages = [costs[start:stop] for start, stop in zip(starts, assignment.stops, strict=True)]
    entering = [chain[start].input_bytes if start else 0 for start in (*starts, 0)]
    activations = np.asarray([sum(cost.activation_bytes for cost in stage) for stage in stages])
    kept = profile.kept @ activations
    terms = []
    for actor in range(profile.num_actors):
        own = [stage for stage in range(profile.num_stages) if profile.actor_of[stage] == actor]
        parts = [cost for stage in own for cost in stages[stage]]
        working = [
            max(cost.working_bytes for cost in stages[stage]) + entering[stage] + entering[stage + 1] for stage in own
        ]
        terms.append(
            MemoryTerms(
                weight_bytes=sum(cost.weight_bytes for cost in parts),
                gradient_bytes=sum(cost.gradient_bytes for cost in parts),
                optimizer_bytes=sum(cost.optimizer_bytes for cost in parts),
                activation_bytes=int(kept[profile.kept_actors == actor].max()),
                working_bytes=max(working),
            )
        )
    return tuple(terms)
