"""The space of plans: actors, meshes, microbatches, schedules, recomputation and storage.

actors x devices of an actor    all ways to divide the devices
mesh of an actor                data x model; the model axis stays inside of a host
microbatches                    numbers that the batch divides into, with rows for every device of the data axis
schedule, stages                one stage an actor, or several where the schedule loops
recompute, storage              all; ZeRO's only where there are replicas
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxquard.errors import ScheduleError
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.planner.stages.segment_costs import PipelineShape
from jaxquard.planner.wishes import Wishes
from jaxquard.schedules.registry import SCHEDULES, make_schedule

NO_SCHEDULE = "none"
# The others are never faster than one of these by these prices, and need more memory; a user may fix any.
_USUAL_SCHEDULES = ("1f1b", "interleaved", "zero-bubble-h1", "zero-bubble-v")
_STAGES_PER_ACTOR = (1, 2, 4)
# Numbers of microbatches, relative to the actors: bubbles shrink with more, and kernels do too.
_MICROBATCHES_PER_ACTOR = (1, 2, 4, 8, 16, 32)
_MAX_COUNTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """A configuration: everything of a plan but the stages' segments and their strategies.

    Attributes:
        axes: the axes of an actor's mesh, and their sizes; those of size 1 are left out, unless all are.
        microbatch_size: rows of a microbatch, over all devices of an actor.
    """

    num_actors: int
    num_stages: int
    axes: tuple[tuple[str, int], ...]
    num_microbatches: int
    microbatch_size: int
    schedule: str
    recompute: Recompute = Recompute.NONE
    storage: Storage = Storage.AS_USED

    @property
    def actor_devices(self) -> int:
        """Devices of an actor."""
        total = 1
        for _, size in self.axes:
            total *= size
        return total

    @property
    def pipeline(self) -> PipelineShape:
        """The shape of its pipeline."""
        return PipelineShape(
            num_actors=self.num_actors,
            num_stages=self.num_stages,
            schedule=self.schedule,
            num_microbatches=self.num_microbatches,
        )

    @property
    def settings(self) -> dict[str, object]:
        """Its settings under the names of wishes and of alternatives."""
        return {
            "stages": self.num_stages,
            "actors": self.num_actors,
            "microbatches": self.num_microbatches,
            "microbatch_size": self.microbatch_size,
            "schedule": self.schedule,
            "recompute": self.recompute.value,
            "storage": self.storage.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpace:
    """The limits of the space.

    Attributes:
        max_stages: as many as the step has places where one may begin, and one.
        max_microbatch_size: rows of a microbatch at most.
    """

    problem: PlanProblem
    target: PlanTarget
    wishes: Wishes
    max_stages: int
    max_microbatch_size: int | None = None
    schedules: tuple[str, ...] = field(default=())

    def meshes(self) -> Iterator[tuple[int, dict[str, int]]]:
        """Yields numbers of actors, each with the meshes that its devices can make."""
        for num_actors in divisors(self.target.num_devices):
            if num_actors > self.max_stages or not self.wishes.allows_setting("actors", num_actors):
                continue
            for axes in _meshes(self.target.num_devices // num_actors, self.target.devices_per_host):
                if self.wishes.allows_mesh(axes):
                    yield num_actors, axes

    def counts(self, num_actors: int, axes: Mapping[str, int]) -> list[int]:
        """Returns numbers of microbatches to consider."""
        rows = self.problem.rows
        found = [
            count
            for count in self.problem.counts
            if (rows // count) % axes.get("data", 1) == 0
            and self.wishes.allows_setting("microbatches", count)
            and self.wishes.allows_setting("microbatch_size", rows // count)
            and (self.max_microbatch_size is None or rows // count <= self.max_microbatch_size)
        ]
        if "microbatches" in self.wishes.fixed or "microbatch_size" in self.wishes.fixed:
            return found
        wanted = {num_actors * factor for factor in _MICROBATCHES_PER_ACTOR}
        usual = [count for count in found if count in wanted] or found
        return usual[:_MAX_COUNTS]

    def shapes(self, num_actors: int, axes: Mapping[str, int], count: int) -> Iterator[PlanShape]:
        """Yields all configurations on a mesh with so many microbatches."""
        for schedule, num_stages in self._schedules(num_actors, count):
            for recompute in self.problem.recomputes:
                for storage in Storage if axes.get("data", 1) > 1 else (Storage.AS_USED,):
                    shape = PlanShape(
                        num_actors=num_actors,
                        num_stages=num_stages,
                        axes=tuple(axes.items()),
                        num_microbatches=count,
                        microbatch_size=self.problem.rows // count,
                        schedule=schedule,
                        recompute=recompute,
                        storage=storage,
                    )
                    if all(self.wishes.allows_setting(name, value) for name, value in shape.settings.items()):
                        yield shape

    def _schedules(self, num_actors: int, count: int) -> Iterator[tuple[str, int]]:
        """Yields the schedules of so many actors and microbatches, with their numbers of stages."""
        if num_actors == 1:
            yield NO_SCHEDULE, 1
            return
        fixed = self.wishes.fixed.get("schedule")
        names = self.schedules or ((str(fixed),) if fixed in SCHEDULES else _USUAL_SCHEDULES)
        for name in names:
            for per_actor in _STAGES_PER_ACTOR:
                num_stages = per_actor * num_actors
                if num_stages <= self.max_stages and _has_rows(name, num_stages, num_actors, count, per_actor):
                    yield name, num_stages


def _has_rows(name: str, num_stages: int, num_actors: int, count: int, per_actor: int) -> bool:
    """Says whether a schedule exists for so many stages, actors and microbatches."""
    if name in ("interleaved", "looped-bfs") and per_actor == 1:
        return False  # 1F1B and GPipe are those.
    try:
        make_schedule(name, num_stages=num_stages, num_actors=num_actors).rows(count)
    except ScheduleError:
        return False
    return True


def divisors(number: int) -> list[int]:
    """Returns all divisors of a number."""
    return [one for one in range(1, number + 1) if number % one == 0]


def _meshes(num_devices: int, devices_per_host: int) -> Iterator[dict[str, int]]:
    """Yields the meshes of so many devices: data x model."""
    if num_devices == 1:
        yield {"data": 1}
        return
    for model in divisors(num_devices):
        if model <= max(devices_per_host, 1):
            axes = {"data": num_devices // model, "model": model}
            yield {axis: size for axis, size in axes.items() if size > 1}


def largest_first(counts: Sequence[int]) -> list[int]:
    """Returns numbers of microbatches from the middle outwards: the middle says most about the others."""
    middle = len(counts) // 2
    return sorted(counts, key=lambda count: abs(counts.index(count) - middle))
