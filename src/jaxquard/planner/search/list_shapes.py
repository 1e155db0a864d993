"""The configurations that a search considers, those of one mesh and number of microbatches together."""

import math
from collections.abc import Mapping
from dataclasses import replace

from jaxquard.cluster import Topology
from jaxquard.errors import PlanError
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.configurations.space import PRODUCT_AXES, PlanSpace, list_configurations
from jaxquard.planner.wishes import Wishes
from jaxquard.schedules.registry import SCHEDULES

# The others are no faster than one of these by these prices, or need more memory; a user may fix any.
_SCHEDULES = ("1f1b", "interleaved", "zero-bubble-h1", "zero-bubble-v")
_STORAGES = ("as used", "zero 1", "zero 2", "zero 3")
# Microbatches, relative to the actors: bubbles shrink with more of them, and so do kernels.
_PER_ACTOR = (1, 2, 4, 8, 16, 32)


def list_shapes(
    problem: PlanProblem,
    target: PlanTarget,
    wishes: Wishes,
    *,
    max_stages: int,
    max_microbatch_size: int | None,
) -> tuple[PlanConfiguration, ...]:
    """Returns all configurations to consider; meshes are without axes of size 1, unless all are.

    Args:
        max_stages: that the step can have.
        max_microbatch_size: rows of a microbatch at most.

    Raises:
        PlanError: if there is none; it says why.
    """
    most_rows = max_microbatch_size or math.inf
    space = PlanSpace(
        num_devices=target.num_devices,
        global_batch=problem.rows,
        num_segments=max_stages,
        devices_per_host=target.devices_per_host,
        schedules=_schedules(wishes),
        recomputes=problem.recomputes,
        storages=_STORAGES,
        num_model_axes=2 if _wants_products(target, wishes) else 1,
        fixed=wishes.fixed,
        one_of=wishes.one_of,
        forbidden=wishes.forbidden,
        accepts=lambda one: one.microbatch_size <= most_rows and _has_count(one, problem, wishes),
    )
    try:
        found = list_configurations(space)
    except PlanError as error:
        limit = "" if max_microbatch_size is None else f"with max_microbatch_size={max_microbatch_size}: "
        raise PlanError(" ".join(filter(None, (f"{limit}{error}", problem.note)))) from error
    return tuple(replace(one, axes=_without_ones(one.mesh)) for one in found)


def _schedules(wishes: Wishes) -> tuple[str, ...]:
    """Returns the schedules that are fixed; else the usual ones, or all others where these are forbidden."""
    wished = [wishes.fixed[name] for name in ("schedule",) if name in wishes.fixed] or wishes.one_of.get("schedule")
    if wished:
        return tuple(str(name) for name in wished if name in SCHEDULES) or _SCHEDULES
    is_left = any(wishes.allows_setting("schedule", name) for name in _SCHEDULES)
    return _SCHEDULES if is_left else tuple(SCHEDULES)


def _wants_products(target: PlanTarget, wishes: Wishes) -> bool:
    """Returns true if two model axes are considered: on a torus, where each has its own links, or if wished."""
    is_torus = target.cluster.network.topology is Topology.TORUS
    is_wished = any(wish.is_fixed and "2d" in wish.strategy for wish in wishes.strategies)
    named = {*wishes.fixed, *wishes.one_of}
    return is_torus or is_wished or not named.isdisjoint(PRODUCT_AXES)


def count_devices(configuration: PlanConfiguration) -> int:
    """Returns the devices of an actor."""
    return math.prod(size for _, size in configuration.axes)


def has_single_axis(configuration: PlanConfiguration) -> bool:
    """Returns true for a configuration with one kind of parallelism at most."""
    return (configuration.num_actors > 1) + sum(size > 1 for _, size in configuration.axes) <= 1


def _has_count(one: PlanConfiguration, problem: PlanProblem, wishes: Wishes) -> bool:
    if one.num_microbatches not in problem.counts:
        return False
    wished = wishes.fixed.keys() | wishes.one_of.keys()
    is_free = len(problem.counts) > 1 and not {"microbatches", "microbatch_size"} & wished
    return not is_free or one.num_microbatches in _usual_counts(problem, one)


def _usual_counts(problem: PlanProblem, one: PlanConfiguration) -> list[int]:
    """Returns the numbers of microbatches to consider for so many actors; where none is usual, all."""
    data = one.mesh.get("data", 1)
    possible = [count for count in problem.counts if problem.rows // count % data == 0]
    usual = [count for count in possible if count % one.num_actors == 0 and count // one.num_actors in _PER_ACTOR]
    return usual or possible


def _without_ones(axes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    if len(axes) > 2:
        return tuple(axes.items())
    return tuple((axis, size) for axis, size in axes.items() if size > 1) or (("data", 1),)
