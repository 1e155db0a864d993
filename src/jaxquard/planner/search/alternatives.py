"""The alternatives of a plan: the best plan with another schedule, mesh, number of microbatches and so on."""

from collections.abc import Callable, Sequence

from jaxquard.planner.record.plan import PlanAlternative, TimeTerms
from jaxquard.planner.search.search_shapes import FoundShape
from jaxquard.planner.stages.configuration import PlanConfiguration

_PARTS: dict[str, Callable[[PlanConfiguration], object]] = {
    "schedule": lambda shape: shape.schedule,
    "stages": lambda shape: shape.num_stages,
    "microbatches": lambda shape: shape.num_microbatches,
    "recompute": lambda shape: shape.recompute.value,
    "mesh": lambda shape: " x ".join(f"{axis} {size}" for axis, size in shape.axes),
    "storage": lambda shape: shape.storage,
}
_TERMS = {
    "compute": ("compute_s", "recompute_s"),
    "collective": ("collective_s",),
    "bubble": ("bubble_s",),
    "transfer": ("transfer_s",),
    "gradient": ("gradient_s",),
    "optimizer": ("optimizer_s",),
}


def find_alternatives(found: Sequence[FoundShape], chosen: FoundShape) -> tuple[PlanAlternative, ...]:
    """Returns, for each part of a plan, the fastest plan that differs in it."""
    alternatives = []
    for part, value in _PARTS.items():
        other = next((one for one in found if value(one.shape) != value(chosen.shape)), None)
        if other is not None:
            alternatives.append(
                PlanAlternative(
                    part=part,
                    chosen=str(value(chosen.shape)),
                    alternative=str(value(other.shape)),
                    added_s=other.time_s - chosen.time_s,
                    added_bytes=other.played.memory.total_bytes - chosen.played.memory.total_bytes,
                    deciding=deciding_term(chosen.played.times, other.played.times),
                )
            )
    return tuple(alternatives)


def deciding_term(chosen: TimeTerms, other: TimeTerms) -> str:
    """Returns the term that grows most; where none grows, the one that shrinks most."""
    added = {
        term: sum(getattr(other, name) - getattr(chosen, name) for name in names) for term, names in _TERMS.items()
    }
    if other.total_s >= chosen.total_s:
        return max(added, key=lambda term: added[term])
    return min(added, key=lambda term: added[term])
