"""The configurations that a search considers: all that the devices, the batch and the schedules allow."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxquard.errors import PlanError
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.schedule_profile import NO_SCHEDULE
from jaxquard.schedules.patterns.looped import Interleaved, Looped
from jaxquard.schedules.patterns.v_shaped import VShaped
from jaxquard.schedules.registry import SCHEDULES, find_schedule

DATA_AXIS, MODEL_AXIS = "data", "model"
PRODUCT_AXES = ("rows", "columns")
# The fields of a space that are wishes, and how a user gives them.
_WISHES = {"fixed": "fix", "one_of": "fix", "forbidden": "forbid"}
_DEFAULT_SCHEDULES = ("1f1b", "eager-1f1b", "interleaved", "zero-bubble-h1", "zero-bubble-h2", "zero-bubble-v")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpace:
    """The bounds of a search.

    Attributes:
        num_devices: all of them are used.
        global_batch: rows of a step's batch.
        num_segments: of the chain: the most stages there can be.
        devices_per_host: model axes stay inside of a host.
        spans_hosts: model axes may span hosts, where nothing else fits.
        schedules: by name; one actor needs none.
        recomputes: kinds of recomputation.
        storages: layouts of state between steps; other than the first only where there are replicas, or where there
            is one axis, over which any block may have some.
        max_chunks: stages on one actor, of schedules that leave it free.
        num_model_axes: 1 for data x model, 2 for data x rows x columns as well.
        max_microbatch_size: rows of a microbatch on one replica; None for any.
        min_microbatch_size: the same.
        fixed: values of parts (`configuration.PARTS`) and sizes of axes.
        one_of: for a part or an axis, the values of which it shall have one.
        forbidden: for a part or an axis, the values that it may not have.
        accepts: any further condition.
    """

    num_devices: int
    global_batch: int
    num_segments: int
    devices_per_host: int | None = None
    spans_hosts: bool = False
    schedules: tuple[str, ...] = _DEFAULT_SCHEDULES
    recomputes: tuple[Recompute, ...] = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    storages: tuple[str, ...] = ("as used", "zero 1", "zero 2", "zero 3")
    max_chunks: int = 4
    num_model_axes: int = 1
    max_microbatch_size: int | None = None
    min_microbatch_size: int = 1
    fixed: Mapping[str, Any] = field(default_factory=dict)
    one_of: Mapping[str, Collection[Any]] = field(default_factory=dict)
    forbidden: Mapping[str, Collection[Any]] = field(default_factory=dict)
    accepts: Callable[[PlanConfiguration], bool] | None = None


def list_configurations(space: PlanSpace) -> tuple[PlanConfiguration, ...]:
    """Returns all configurations of a space that meet its wishes.

    Raises:
        PlanError: if there is none; it names the wish that stands against the others, if one alone does.
        ScheduleError: if a schedule does not exist.
    """
    for name in space.schedules:
        find_schedule(name)
    found = tuple(_configurations(space))
    if not found:
        raise PlanError(_explain_none(space))
    return found


def _configurations(space: PlanSpace) -> Iterator[PlanConfiguration]:
    for num_actors in _divisors(space.num_devices):
        if num_actors > space.num_segments:
            continue
        for axes in _meshes(space, space.num_devices // num_actors):
            data = dict(axes).get(DATA_AXIS, 1)
            has_replicas = data > 1 or sum(size > 1 for _, size in axes) == 1
            storages = space.storages if has_replicas else space.storages[:1]
            for size, num_microbatches in _microbatches(space, data):
                pipelines = _pipelines(space, num_actors, num_microbatches)
                for (schedule, num_stages), recompute, storage in itertools.product(
                    pipelines, space.recomputes, storages
                ):
                    configuration = PlanConfiguration(
                        num_actors=num_actors,
                        num_stages=num_stages,
                        axes=axes,
                        microbatch_size=size,
                        num_microbatches=num_microbatches,
                        schedule=schedule,
                        recompute=recompute,
                        storage=storage,
                    )
                    if configuration.meets(space.fixed, space.forbidden, space.one_of) and (
                        space.accepts is None or space.accepts(configuration)
                    ):
                        yield configuration


def _meshes(space: PlanSpace, num_devices: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Returns the meshes of an actor: data x model, and data x rows x columns."""
    limit = num_devices if space.spans_hosts or space.devices_per_host is None else space.devices_per_host
    for model in _divisors(num_devices):
        # A model axis that stays inside of hosts divides them.
        if model > limit or (limit < num_devices and limit % model):
            continue
        data = (DATA_AXIS, num_devices // model)
        yield data, (MODEL_AXIS, model)
        if space.num_model_axes > 1:
            for rows in _divisors(model):
                if 1 < rows < model:
                    yield data, (PRODUCT_AXES[0], rows), (PRODUCT_AXES[1], model // rows)


def _microbatches(space: PlanSpace, data: int) -> Iterator[tuple[int, int]]:
    """Returns sizes and numbers of microbatches: each replica has as many rows of each."""
    for size in _divisors(space.global_batch):
        own = size // data
        if size % data or own < space.min_microbatch_size:
            continue
        if space.max_microbatch_size is None or own <= space.max_microbatch_size:
            yield size, space.global_batch // size


def _pipelines(space: PlanSpace, num_actors: int, num_microbatches: int) -> Iterator[tuple[str, int]]:
    """Returns schedules, and their numbers of stages, that so many actors and microbatches can have."""
    if num_actors == 1:
        yield NO_SCHEDULE, 1
        return
    for name in space.schedules:
        schedule = SCHEDULES[name]
        if issubclass(schedule, VShaped):
            chunks = [2]
        elif issubclass(schedule, Looped):
            chunks = range(2, space.max_chunks + 1)
        else:
            chunks = [1]
        # Its rounds are of as many microbatches as actors; others leave actors without work.
        if issubclass(schedule, Interleaved) and num_microbatches % num_actors:
            continue
        for num_chunks in chunks:
            if num_actors * num_chunks <= space.num_segments:
                yield name, num_actors * num_chunks


def _explain_none(space: PlanSpace) -> str:
    """Says which wish leaves no configuration; without any, that the batch or the devices do not divide."""
    wishes = [(kind, name) for kind in _WISHES for name in getattr(space, kind)]
    known = tuple(_configurations(_without(space, wishes)))
    if not known:
        return (
            f"no configuration spreads {space.global_batch} rows and {space.num_segments} segments over "
            f"{space.num_devices} devices within the limits of microbatches. Use a batch with more divisors, or wider "
            "limits."
        )
    for kind, name in wishes:
        possible = {one.part(name) for one in _configurations(_without(space, [(kind, name)]))}
        if possible:
            others = [other for _, other in wishes if other != name]
            beside = f" beside the wishes for {', '.join(others)}" if others else ""
            listed = ", ".join(map(str, sorted(possible, key=str)[:12]))
            return (
                f"{_WISHES[kind]} {name}={_in_words(getattr(space, kind)[name])} cannot be met{beside}: "
                f"{space.num_devices} devices, {space.global_batch} rows and {space.num_segments} segments allow "
                f"{name} to be {listed}. Choose one of these."
            )
    return (
        f"no configuration meets all wishes at once ({', '.join(name for _, name in wishes)}); {len(known)} exist "
        "without them. Leave some of them out."
    )


def _in_words(wish: Any) -> str:
    return " or ".join(map(str, wish)) if isinstance(wish, tuple | list | set | frozenset) else repr(wish)


def _without(space: PlanSpace, wishes: Collection[tuple[str, str]]) -> PlanSpace:
    """Returns the space without some wishes."""
    left: dict[str, Any] = {
        kind: {name: value for name, value in getattr(space, kind).items() if (kind, name) not in wishes}
        for kind in _WISHES
    }
    return replace(space, **left)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
