"""The usual plans, by the same prices: data parallelism, FSDP and Megatron's rules.

Megatron's rules: tensor parallelism over a host, or over what the model's products divide into; then as few pipeline
stages as fit, with 1F1B; all other devices are replicas, with ZeRO-1.

A usual plan is there to compare with. It need not follow the user's wishes, and says whether it does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxquard.errors import ClusterError, ScheduleError
from jaxquard.gemm.autotune.slices import divisors
from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.record.check_plan import NO_SCHEDULE
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.planner.search.two_passes import TwoPassSearch
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.configurations.configuration_search import PlanFinalist
from jaxquard.planner.stages.configurations.search import search_configurations
from jaxquard.planner.stages.segment_costs import SegmentCosts, count_state_bytes
from jaxquard.planner.tables.mesh_prices import MeshPrices

# The assignments that they are made of.
RECIPES = ("data parallel", "megatron")
# The first words of their names.
USUAL_PLANS = ("data parallel", "fsdp", "megatron")
# Microbatches an actor, with which bubbles are small.
_MEGATRON_MICROBATCHES = 4
_MAX_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualPlan:
    """A usual plan.

    Attributes:
        prices: on its mesh.
        costs: with one strategy for every segment.
        all_costs: with those of all recipes, of which the plan has `places`.
        fits: the memory of a device.
        follows_strategies: it has the strategies that the user wishes for.
    """

    name: str
    finalist: PlanFinalist
    prices: MeshPrices
    costs: StepCosts
    all_costs: StepCosts
    places: tuple[int, ...]
    fits: bool = True
    follows_strategies: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualPlans:
    """Makes the usual plans of a step on a cluster.

    Attributes:
        pricing: as the search's, or of their recipes alone.
        deadline: of the finest pricer; the closed form is asked in any case.
    """

    search: TwoPassSearch
    pricing: StepPricing
    problem: PlanProblem
    target: PlanTarget
    max_stages: int
    deadline: Deadline

    def find(self) -> list[UsualPlan]:
        """Returns those that run; those that do not fit the memory say so.

        All have prices of the finest pricer, or, if the time ends before they do, all have those of the closed form, by
        which the search then goes on.
        """
        num_left_out = len(self.deadline.left_out)
        found = self._find_all()
        if not self.pricing.is_fine or len(self.deadline.left_out) == num_left_out:
            return found
        self.deadline.left_out[num_left_out:] = [
            "the time budget left out prices of the usual plans, so all plans are compared in closed form"
        ]
        self.search.pricing.give_up_refining()
        self.pricing.give_up_refining()
        return self._find_all()

    def _find_all(self) -> list[UsualPlan]:
        makers: tuple[Callable[[], UsualPlan | None], ...] = (
            lambda: self.data_parallel("data parallel", Storage.AS_USED),
            lambda: self.data_parallel("fsdp", Storage.ZERO_3),
            self.megatron,
        )
        plans = (make() for make in makers)
        return [plan for plan in plans if plan is not None]

    def data_parallel(self, name: str, storage: Storage) -> UsualPlan | None:
        """Returns data parallelism over all devices, with as few microbatches as fit, or as many as there are."""
        num_devices = self.target.num_devices
        axes = {"data": num_devices}
        counts = self._counts(num_devices)
        found = (self._find(1, axes, count, storage, "data parallel", name) for count in counts)
        plan = next((plan for plan in found if plan is not None), None)
        if plan is None and counts:
            return self._find(1, axes, counts[-1], storage, "data parallel", name, fits=False)
        return plan

    def megatron(self) -> UsualPlan | None:
        """Returns Megatron's choice, or one that does not fit; None if there is no model parallelism that runs."""
        tries = [(degrees, fits) for fits in (True, False) for degrees in self._degrees()]
        found = (self._megatron(model, actors, fits=fits) for (model, actors), fits in tries)
        return next((plan for plan in found if plan is not None), None)

    def _degrees(self) -> Iterator[tuple[int, int]]:
        num_devices = self.target.num_devices
        for model in sorted(divisors(num_devices), reverse=True):
            if 1 < model <= self.target.devices_per_host:
                yield from ((model, actors) for actors in divisors(num_devices // model) if actors <= self.max_stages)

    def _megatron(self, model: int, actors: int, *, fits: bool) -> UsualPlan | None:
        data = self.target.num_devices // (model * actors)
        axes = {axis: size for axis, size in {"data": data, "model": model}.items() if size > 1}
        name = f"megatron, tp {model} x pp {actors} x dp {data}"
        storage = Storage.ZERO_1 if data > 1 else Storage.AS_USED
        wanted = _MEGATRON_MICROBATCHES * actors if actors > 1 else 1
        counts = sorted(self._counts(data), key=lambda count: (count < actors, abs(count - wanted)))
        for count in counts[:_MAX_TRIES]:
            plan = self._find(actors, axes, count, storage, "megatron", name, fits=fits)
            if plan is not None or (fits and not self._has_room(axes, count, storage, actors)):
                return plan
        return None

    def _has_room(self, axes: dict[str, int], count: int, storage: Storage, actors: int) -> bool:
        """Returns false if the state alone does not fit, with any number of microbatches."""
        prices = self.pricing.find_recipes(axes, count)
        if prices is None:
            return True
        costs = prices.costs(storage=storage, recompute=Recompute.NONE)
        return count_state_bytes(costs.segments) <= actors * self.search.memory_limit_bytes

    def _counts(self, data: int) -> list[int]:
        return [count for count in self.problem.counts if self.problem.rows // count % data == 0]

    def _find(
        self, actors: int, axes: dict[str, int], count: int, storage: Storage, recipe: str, name: str, fits: bool = True
    ) -> UsualPlan | None:
        """Returns a recipe with its stages; None if it does not run.

        Args:
            fits: None also if it does not fit the memory.
        """
        shape = PlanConfiguration(
            num_actors=actors,
            num_stages=actors,
            axes=tuple(axes.items()),
            num_microbatches=count,
            microbatch_size=self.problem.rows // count,
            schedule=NO_SCHEDULE if actors == 1 else "1f1b",
            recompute=Recompute.NONE,
            storage=storage.value,
        )
        pricing = self.pricing
        coarse = pricing.find_recipes(axes, count)
        plan = self._make(coarse, shape, recipe, name, fits=fits)
        # The finest pricer is asked for what the closed form says runs.
        prices = None if plan is None or coarse is None else pricing.refine(coarse, deadline=self.deadline)
        if prices is coarse or (prices is None and not self.deadline.has_time()):
            return plan
        return self._make(prices, shape, recipe, name, fits=fits)

    def _make(
        self, prices: MeshPrices | None, shape: PlanConfiguration, recipe: str, name: str, *, fits: bool
    ) -> UsualPlan | None:
        if prices is None or recipe not in prices.facts.recipes:
            return None
        costs = prices.costs(storage=Storage(shape.storage), recompute=shape.recompute)
        places = costs.places(prices.facts.recipes[recipe])
        if places is None:
            return None
        forced = force_strategies(costs, places)
        finalist = self._play(shape, forced, self.search.memory_limit_bytes if fits else None)
        if finalist is None:
            return None
        follows = self._follows(prices, prices.facts.recipes[recipe])
        return UsualPlan(
            name=name,
            finalist=finalist,
            prices=prices,
            costs=forced,
            all_costs=costs,
            places=places,
            fits=fits,
            follows_strategies=follows,
        )

    def _follows(self, prices: MeshPrices, assignment: Assignment) -> bool:
        """Returns true if an assignment has the strategies that the user wishes for."""
        is_allowed = self.search.pricing.wishes.strategy_filter(prices.facts.names)
        return all(is_allowed(block, tuple(choice)) for block, choice in assignment.items())

    def _play(self, shape: PlanConfiguration, costs: StepCosts, limit_bytes: int | None) -> PlanFinalist | None:
        try:
            return search_configurations(
                [shape],
                lambda shape: costs.segments,
                memory_limit_bytes=limit_bytes,
                links=self.search.links,
                num_finalists=1,
                finds_smallest=False,
            ).best
        except (ClusterError, ScheduleError):
            return None


def force_strategies(costs: StepCosts, places: Sequence[int]) -> StepCosts:
    """Returns costs that leave every segment one strategy, by its place."""
    made: dict[tuple[int, int], SegmentCosts] = {}
    segments = []
    for segment, place in zip(costs.segments, places, strict=True):
        key = id(segment), place
        if key not in made:
            made[key] = replace(segment, strategies=(segment.strategies[place],))
        segments.append(made[key])
    strategies = tuple((found[place],) for found, place in zip(costs.strategies, places, strict=True))
    return replace(costs, segments=tuple(segments), strategies=strategies)
