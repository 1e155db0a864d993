"""The usual plans, by the same prices: data parallelism, FSDP, Megatron's rules, and the best plan of a single axis.

Megatron's rules: tensor parallelism over a host, or over what the model's products divide into; then as few pipeline
stages as fit, with 1F1B; all other devices are replicas.
"""

from collections.abc import Sequence
from dataclasses import replace

from jaxquard.errors import ClusterError, ScheduleError
from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.record.check_plan import NO_SCHEDULE
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.search_shapes import FoundShape, ShapeSearch
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.planner.stages.configuration import PlanConfiguration
from jaxquard.planner.stages.segment_costs import SegmentCosts

SINGLE_AXIS = "best of a single axis"
# Microbatches an actor, with which bubbles are small.
_MEGATRON_MICROBATCHES = 4
_MAX_TRIES = 3


def usual_plans(
    search: ShapeSearch, found: Sequence[FoundShape], *, problem: PlanProblem, target: PlanTarget, max_stages: int
) -> list[FoundShape]:
    """Returns the usual plans that run and fit, each with its name."""
    recipes = UsualPlans(search, problem=problem, target=target, max_stages=max_stages)
    plans = [
        recipes.data_parallel("data parallel", Storage.AS_USED),
        recipes.data_parallel("fsdp", Storage.ZERO_3),
        recipes.megatron(),
        next((replace(one, name=SINGLE_AXIS) for one in found if has_single_axis(one.shape)), None),
    ]
    return [plan for plan in plans if plan is not None]


def has_single_axis(shape: PlanConfiguration) -> bool:
    """Says whether a configuration has one kind of parallelism at most."""
    return (shape.num_actors > 1) + sum(size > 1 for _, size in shape.axes) <= 1


class UsualPlans:
    """Makes the usual plans of a step on a cluster."""

    def __init__(self, search: ShapeSearch, *, problem: PlanProblem, target: PlanTarget, max_stages: int) -> None:
        self._search, self._problem, self._target, self._max_stages = search, problem, target, max_stages

    def data_parallel(self, name: str, storage: Storage) -> FoundShape | None:
        """Returns data parallelism over all devices, with as few microbatches as fit; None if nothing does."""
        num_devices = self._target.num_devices
        for count in self._counts(num_devices):
            found = self._assign(1, {"data": num_devices}, count, storage, "data parallel", name)
            if found is not None:
                return found
        return None

    def megatron(self) -> FoundShape | None:
        """Returns Megatron's choice; None if there is no model parallelism that runs and fits."""
        num_devices = self._target.num_devices
        for model in reversed([one for one in divisors(num_devices) if 1 < one <= self._target.devices_per_host]):
            for actors in divisors(num_devices // model):
                if actors <= self._max_stages:
                    found = self._megatron(model, actors)
                    if found is not None:
                        return found
        return None

    def _megatron(self, model: int, actors: int) -> FoundShape | None:
        data = self._target.num_devices // (model * actors)
        axes = {axis: size for axis, size in {"data": data, "model": model}.items() if size > 1}
        name = f"megatron, tp {model} x pp {actors} x dp {data}"
        storage = Storage.ZERO_1 if data > 1 else Storage.AS_USED
        wanted = _MEGATRON_MICROBATCHES * actors if actors > 1 else 1
        counts = sorted(self._counts(data), key=lambda count: (count < actors, abs(count - wanted)))
        for count in counts[:_MAX_TRIES]:
            found = self._assign(actors, axes, count, storage, "megatron", name)
            if found is not None:
                return found
        return None

    def _counts(self, data: int) -> list[int]:
        return [count for count in self._problem.counts if self._problem.rows // count % data == 0]

    def _assign(
        self, actors: int, axes: dict[str, int], count: int, storage: Storage, recipe: str, name: str
    ) -> FoundShape | None:
        """Returns a recipe with its stages; None if it does not run or fit, or the user's wishes are against it."""
        shape = PlanConfiguration(
            num_actors=actors,
            num_stages=actors,
            axes=tuple(axes.items()),
            num_microbatches=count,
            microbatch_size=self._problem.rows // count,
            schedule=NO_SCHEDULE if actors == 1 else "1f1b",
            recompute=Recompute.NONE,
            storage=storage.value,
        )
        prices, costs = self._search.pricing.find(axes, count), self._search.find_costs(shape)
        if prices is None or costs is None or recipe not in prices.priced.recipes:
            return None
        forced = force_assignment(costs, prices.priced.recipes[recipe])
        try:
            return None if forced is None else self._search.assign(shape, forced, name=name)
        except (ClusterError, ScheduleError):
            return None


def divisors(number: int) -> list[int]:
    """Returns all divisors of a number."""
    return [one for one in range(1, number + 1) if number % one == 0]


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
