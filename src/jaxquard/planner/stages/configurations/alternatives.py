"""Alternatives to each part of the fastest configuration: the next best value, what it adds, and why."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jaxquard.planner.record.plan import PlanAlternative, TimeTerms
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.configurations.configuration_search import ConfigurationSearch, PlanFinalist

_Value = Callable[[PlanConfiguration], Any]


def _mesh(configuration: PlanConfiguration) -> str:
    return " x ".join(f"{name} {size}" for name, size in configuration.axes)


# For each part: its value, and what stays as it is.
_PARTS: Mapping[str, tuple[_Value, tuple[str, ...]]] = {
    "schedule": (lambda one: one.schedule, ("num_actors", "axes", "num_microbatches", "recompute", "storage")),
    "stages": (lambda one: one.num_stages, ("num_microbatches", "recompute", "storage")),
    "microbatches": (
        lambda one: one.num_microbatches,
        ("num_actors", "num_stages", "axes", "schedule", "recompute", "storage"),
    ),
    "recompute": (
        lambda one: one.recompute.value,
        ("num_actors", "num_stages", "axes", "schedule", "num_microbatches", "storage"),
    ),
    "storage": (
        lambda one: one.storage,
        ("num_actors", "num_stages", "axes", "schedule", "num_microbatches", "recompute"),
    ),
    "mesh": (_mesh, ("num_actors", "num_stages", "schedule", "num_microbatches", "recompute")),
}
PART_VALUES: Mapping[str, _Value] = {part: value for part, (value, _) in _PARTS.items()}
_TERMS = {
    "compute": ("compute_s", "recompute_s"),
    "collective": ("collective_s",),
    "transfer": ("transfer_s",),
    "bubble": ("bubble_s",),
    "gradient": ("gradient_s",),
    "optimizer": ("optimizer_s",),
}


def find_alternatives(
    search: ConfigurationSearch,
    space: Sequence[PlanConfiguration],
    best: PlanFinalist,
    *,
    known: Collection[str] = (),
) -> tuple[tuple[PlanAlternative, ...], tuple[str, ...], tuple[PlanFinalist, ...]]:
    """Returns for each part the fastest configuration that differs in it and is otherwise as the best one is.

    A faster one that does not fit the memory comes along. The parts for which the time budget was over come second; and
    last those that fit and play faster than the best one after all.

    Args:
        known: parts that are not asked for.
    """
    found, missing, faster = [], [], []
    for part, (value, kept) in _PARTS.items():
        if part in known:
            continue
        if search.is_late():
            missing.append(part)
            continue
        others = [one for one in space if value(one) != value(best.configuration) and _agree(one, best, kept)]
        fitting = _fastest(search, others, has_limit=True)
        while part == "mesh" and fitting is not None and _is_same(fitting, best):
            # The same plan under other names of its axes: all of them shard rows.
            others = [one for one in others if one.axes != fitting.configuration.axes]
            fitting = _fastest(search, others, has_limit=True)
        if fitting is not None:
            found.append(_compare(part, value, best, fitting, fits=True))
            faster += [fitting] * (fitting.time_s < best.time_s)
        if search.memory_limit_bytes is None:
            continue
        larger = _fastest(search, others, has_limit=False)
        if larger is not None and larger.memory_bytes > search.memory_limit_bytes and larger.time_s < best.time_s:
            found.append(_compare(part, value, best, larger, fits=False))
    return tuple(found), tuple(missing), tuple(faster)


def _agree(one: PlanConfiguration, best: PlanFinalist, names: Sequence[str]) -> bool:
    return all(getattr(one, name) == getattr(best.configuration, name) for name in names)


def _is_same(one: PlanFinalist, other: PlanFinalist) -> bool:
    return (one.time_s, one.played.memory) == (other.time_s, other.played.memory)


def _fastest(
    search: ConfigurationSearch, space: Sequence[PlanConfiguration], *, has_limit: bool
) -> PlanFinalist | None:
    """Returns the configuration of the fastest estimate, played."""
    ranked = search.rank(space, is_brief=True, has_limit=has_limit)
    return search.play(ranked[0], has_limit=has_limit) if ranked else None


def _compare(part: str, value: _Value, best: PlanFinalist, other: PlanFinalist, *, fits: bool) -> PlanAlternative:
    return PlanAlternative(
        part=part,
        chosen=str(value(best.configuration)),
        alternative=str(value(other.configuration)),
        added_s=other.time_s - best.time_s,
        added_bytes=other.memory_bytes - best.memory_bytes,
        deciding=largest_rise(best.played.times, other.played.times) if fits else "memory",
    )


def largest_rise(ours: TimeTerms, other: TimeTerms) -> str:
    """Returns the term in which another step takes the most time more than ours."""
    rises = {term: sum(getattr(other, name) - getattr(ours, name) for name in names) for term, names in _TERMS.items()}
    return max(rises, key=lambda term: rises[term])
