"""The usual plans, by the same prices: data parallelism, FSDP, Megatron's rules, and the best plan of a single axis.

Megatron's rules: tensor parallelism over a host, or over what the model's products divide into; then as few pipeline
stages as fit, with 1F1B; all other devices are replicas.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jaxquard.errors import ClusterError, ScheduleError
from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.configurations import NO_SCHEDULE, PlanShape, divisors
from jaxquard.planner.search.search_shapes import FoundShape, ShapeSearch
from jaxquard.planner.stages.segment_costs import SegmentCosts

SINGLE_AXIS = "best of a single axis"


def usual_plans(search: ShapeSearch, found: Sequence[FoundShape]) -> list[FoundShape]:
    """Returns the usual plans that run and fit, each with its name."""
    plans = [
        _recipe(search, "data parallel", "data parallel", Storage.AS_USED),
        _recipe(search, "fsdp", "data parallel", Storage.ZERO_3),
        _megatron(search),
        next((replace(one, name=SINGLE_AXIS) for one in found if has_single_axis(one.shape)), None),
    ]
    return [plan for plan in plans if plan is not None]


def has_single_axis(shape: PlanShape) -> bool:
    """Says whether a configuration has one kind of parallelism at most."""
    return (shape.num_actors > 1) + sum(size > 1 for _, size in shape.axes) <= 1


def _recipe(search: ShapeSearch, name: str, recipe: str, storage: Storage) -> FoundShape | None:
    """Returns a recipe on all devices as one actor, with as few microbatches as fit."""
    num_devices = search.space.target.num_devices
    for count in search.space.problem.counts:
        size = search.space.problem.rows // count
        if size % num_devices:
            continue
        shape = _shape(search, 1, {"data": num_devices}, count, storage=storage)
        found = _assign(search, shape, recipe, name)
        if found is not None:
            return found
    return None


def _megatron(search: ShapeSearch) -> FoundShape | None:
    target = search.space.target
    for model in reversed([one for one in divisors(target.num_devices) if one <= target.devices_per_host]):
        for actors in divisors(target.num_devices // model):
            if model > 1 and actors <= search.space.max_stages:
                found = next(_megatron_plans(search, model, actors), None)
                if found is not None:
                    return found
    return None


def _megatron_plans(search: ShapeSearch, model: int, actors: int) -> Iterator[FoundShape]:
    data = search.space.target.num_devices // (model * actors)
    axes = {axis: size for axis, size in {"data": data, "model": model}.items() if size > 1}
    for count in search.space.counts(actors, axes):
        shape = _shape(search, actors, axes, count, storage=Storage.ZERO_1 if data > 1 else Storage.AS_USED)
        found = _assign(search, shape, "megatron", f"megatron, tp {model} x pp {actors} x dp {data}")
        if found is not None:
            yield found


def _shape(search: ShapeSearch, actors: int, axes: dict[str, int], count: int, *, storage: Storage) -> PlanShape:
    return PlanShape(
        num_actors=actors,
        num_stages=actors,
        axes=tuple(axes.items()),
        num_microbatches=count,
        microbatch_size=search.space.problem.rows // count,
        schedule=NO_SCHEDULE if actors == 1 else "1f1b",
        recompute=Recompute.NONE,
        storage=storage,
    )


def _assign(search: ShapeSearch, shape: PlanShape, recipe: str, name: str) -> FoundShape | None:
    """Returns a recipe with its stages; None if it does not run or fit, or the user's wishes are against it."""
    prices = search.pricing.find(dict(shape.axes), shape.num_microbatches)
    costs = search.find_costs(shape)
    if prices is None or costs is None or recipe not in prices.priced.recipes:
        return None
    forced = force_assignment(costs, prices.priced.recipes[recipe])
    try:
        return None if forced is None else search.assign(shape, forced, name=name)
    except (ClusterError, ScheduleError):
        return None


def force_assignment(costs: StepCosts, assignment: Assignment) -> StepCosts | None:
    """Returns costs that leave every segment one strategy; None if one of them has no price."""
    places = costs.places(assignment)
    if places is None:
        return None
    made: dict[tuple[int, int], SegmentCosts] = {}
    segments = []
    for segment, place in zip(costs.segments, places, strict=True):
        key = id(segment), place
        if key not in made:
            made[key] = replace(segment, strategies=(segment.strategies[place],))
        segments.append(made[key])
    strategies = tuple((found[place],) for found, place in zip(costs.strategies, places, strict=True))
    return replace(costs, segments=tuple(segments), strategies=strategies)
