"""Wishes of a user: settings of a plan by name, and shardings by parameter path or line of code.

    fix={"schedule": "1f1b", "stages": 8, "data": 4}        settings, and sizes of axes; or "mesh": {"data": 4}
    fix={"layers.*.mlp": "columns", "model.py:41": "2d"}    strategies of blocks
    forbid={"recompute": "full", "schedule": ["gpipe", "looped-bfs"], "embed": "contracted"}

A wish that is unclear, unknown or in contradiction to another is refused when it is read; one that the step or the
cluster cannot meet, when they are known (`Wishes.check`, `Wishes.strategy_filter`).
"""

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.errors import PlanError, ScheduleError
from jaxquard.intraop.segments.block_names import BlockNames
from jaxquard.planner.record.check_plan import NO_SCHEDULE, STORAGES
from jaxquard.planner.record.match_names import is_slip, nearest_names
from jaxquard.planner.record.plan_data import Recompute
from jaxquard.planner.strategy_wishes import (
    StrategyWish,
    check_agreement,
    matches_nothing,
    names_in_words,
    read_strategy,
)
from jaxquard.schedules.registry import SCHEDULES, make_schedule

COUNTS = ("stages", "actors", "microbatches", "microbatch_size")
WORDS: dict[str, tuple[str, ...]] = {
    "schedule": (NO_SCHEDULE, *SCHEDULES),
    "recompute": tuple(one.value for one in Recompute),
    "storage": STORAGES,
}
_MOST = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The settings and shardings that a user fixes and forbids.

    Attributes:
        fixed: settings, and sizes of axes, by name.
        one_of: for each setting or axis, several values of which it shall have one.
        forbidden: for each setting or axis, the values that it shall not have.
        strategies: wishes for the sharding of blocks.
    """

    fixed: Mapping[str, int | str]
    one_of: Mapping[str, tuple[int | str, ...]]
    forbidden: Mapping[str, tuple[int | str, ...]]
    strategies: tuple[StrategyWish, ...] = ()

    @property
    def axes(self) -> dict[str, int]:
        """The sizes of mesh axes that are fixed."""
        return {name: int(value) for name, value in self.fixed.items() if name not in COUNTS and name not in WORDS}

    def allows_setting(self, name: str, value: Any) -> bool:
        """Says whether a setting, or an axis, may have a value; an axis that the mesh lacks has size 1."""
        value = value.value if isinstance(value, enum.Enum) else value
        is_wished = self.fixed.get(name, value) == value and value in self.one_of.get(name, (value,))
        return is_wished and value not in self.forbidden.get(name, ())

    def allows_mesh(self, axes: Mapping[str, int]) -> bool:
        """Says whether an actor may have a mesh of these axes."""
        return all(self.allows_setting(name, axes.get(name, 1)) for name in self._axis_names())

    def _axis_names(self) -> set[str]:
        """The names of axes in all wishes."""
        return {*self.fixed, *self.one_of, *self.forbidden}.difference(COUNTS, WORDS)

    def check(
        self,
        *,
        num_devices: int | None = None,
        global_batch: int | None = None,
        num_segments: int | None = None,
        axes: Collection[str] | None = None,
    ) -> None:
        """Checks that the step and the cluster can meet the wishes for settings, as far as they are given.

        Args:
            num_segments: of the step: the most stages that it can have.
            axes: names that a mesh may have.

        Raises:
            PlanError: at the first that they cannot, with what stands against it.
        """
        _check_counts(self, num_devices=num_devices, global_batch=global_batch, num_segments=num_segments)
        unknown = None if axes is None else min(self._axis_names().difference(axes), default=None)
        if unknown is not None:
            raise PlanError(_unknown_name(unknown, axes or ()))

    def strategy_filter(self, names: Mapping[int, BlockNames]) -> Callable[[int, tuple[str, ...]], bool]:
        """Returns a function that says whether a block, by its number, may have a choice on the axes.

        Raises:
            PlanError: if a wish names no block, or two contradict each other on one.
        """
        meant = {number: [wish for wish in self.strategies if wish.means(one)] for number, one in names.items()}
        for wish in self.strategies:
            if not any(wish in found for found in meant.values()):
                raise PlanError(matches_nothing(wish, names))
        for number, found in meant.items():
            check_agreement(found, f"block {number}{names_in_words(names[number])}")
        return lambda block, choice: all(wish.allows(choice, names[block]) for wish in meant.get(block, ()))

    def check_strategies(
        self, names: Mapping[int, BlockNames], choices: Mapping[int, Sequence[tuple[str, ...]]]
    ) -> None:
        """Checks that every block is left with a choice.

        Args:
            choices: of every block, on all axes together.

        Raises:
            PlanError: if a wish leaves a block without any; it says which there are.
        """
        is_allowed = self.strategy_filter(names)
        for number, found in choices.items():
            if any(is_allowed(number, choice) for choice in found):
                continue
            wishes = [wish for wish in self.strategies if wish.means(names[number])]
            offered = ", ".join("/".join(choice) for choice in found)
            raise PlanError(
                f"{' and '.join(map(str, wishes))}, but block {number}{names_in_words(names[number])} can only have "
                f"{offered}. Choose one of these."
            )


def parse_wishes(fix: Mapping[str, Any] | None = None, forbid: Mapping[str, Any] | None = None) -> Wishes:
    """Reads wishes as a user gives them.

    Args:
        fix: a value for each setting, axis, path or line; or a list, of which a setting or an axis has one.
        forbid: a value or a list of values for each.

    Raises:
        PlanError: if a wish cannot be understood, or contradicts another.
    """
    wanted, chosen = _read_all("fix", fix)
    forbidden, refused = _read_all("forbid", forbid)
    for wish in chosen:
        if sum(other.pattern == wish.pattern for other in chosen) > 1:
            raise PlanError(f"fix {wish.pattern} has several shardings. Give one, or forbid the others.")
    wishes = Wishes(
        fixed={name: values[0] for name, values in wanted.items() if len(values) == 1},
        one_of={name: values for name, values in wanted.items() if len(values) > 1},
        forbidden=forbidden,
        strategies=(*chosen, *refused),
    )
    _check_contradictions(wishes)
    return wishes


def _read_all(kind: str, wishes: Any) -> tuple[dict[str, tuple[int | str, ...]], list[StrategyWish]]:
    """Returns the values of settings and axes, by name, and the wishes for shardings."""
    settings: dict[str, tuple[int | str, ...]] = {}
    strategies: list[StrategyWish] = []
    for name, given in _items(wishes, kind):
        values = given if isinstance(given, list | tuple | set | frozenset) else (given,)
        if not values:
            raise PlanError(f"{kind} {name} has an empty list. Give a value, or leave it out.")
        reads = [_read_wish(kind, name, value) for value in values]
        strategies += [read for read in reads if isinstance(read, StrategyWish)]
        found = tuple(read for read in reads if not isinstance(read, StrategyWish))
        if found:
            settings[name] = found
    return settings, strategies


def _items(wishes: Any, kind: str) -> list[tuple[str, Any]]:
    """Returns names and values; a mesh that is fixed becomes the sizes of its axes."""
    if wishes is None:
        return []
    if not isinstance(wishes, Mapping) or not all(isinstance(name, str) and name.strip() for name in wishes):
        raise PlanError(
            f"{kind} should be a dict of settings, paths or lines, such as {{'schedule': '1f1b', 'layers.*.mlp': "
            f"'columns'}}, found {wishes!r:.80}."
        )
    found = [(name.strip(), value) for name, value in wishes.items() if name.strip() != "mesh"]
    if "mesh" not in wishes:
        return found
    if kind == "forbid":
        raise PlanError("forbid takes sizes of single axes, such as {'model': 4}, and no whole mesh. Name an axis.")
    axes = list(_axes(wishes["mesh"]).items())
    doubled = next((name for name, _ in axes if name in dict(found)), None)
    if doubled is not None:
        raise PlanError(f"fix gives {doubled} twice: in mesh, and by its own name. Leave one of them out.")
    return found + axes


def _axes(mesh: Any) -> dict[str, Any]:
    """Reads a mesh: a dict of axes, or a text such as `data=4 x model=2`."""
    axes = mesh
    if isinstance(mesh, str):
        pairs = [word.partition("=") for word in mesh.replace(",", " x ").split(" x ")]
        axes = {name.strip(): size.strip() for name, _, size in pairs}
    if not isinstance(axes, Mapping) or not axes or not all(_is_axis(name, size) for name, size in axes.items()):
        raise PlanError(f"fix mesh={mesh!r:.80}: a mesh is sizes by axis, such as {{'data': 4, 'model': 2}}.")
    return dict(axes)


def _is_axis(name: Any, size: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and _count(size) is not None


def _read_wish(kind: str, name: str, value: Any) -> int | str | StrategyWish:
    value = value.value if isinstance(value, enum.Enum) else value
    if name in WORDS:
        found = next((one for one in WORDS[name] if _plain(one) == _plain(value)), None)
        if found is None:
            raise PlanError(f"{kind} {name}={value!r:.80}: {name} is one of {', '.join(WORDS[name])}.")
        return found
    number = _count(value)
    if name in COUNTS:
        if number is None:
            raise PlanError(f"{kind} {name}={value!r:.80}: {name} is a whole number above 0.")
        return number
    if number is not None:
        if not name.isidentifier() or any(is_slip(name, known) for known in (*COUNTS, *WORDS)):
            raise PlanError(_unknown_name(name, (*COUNTS, *WORDS)))
        return number
    return read_strategy(name, value, is_fixed=kind == "fix", settings=(*COUNTS, *WORDS))


def _plain(word: Any) -> str:
    """Returns a word without what people write differently: case, and `-`, `_` or a space inside."""
    return "".join(letter for letter in str(word).lower() if letter not in "-_ ")


def _count(value: Any) -> int | None:
    """Returns a whole number above 0, given as such or as text; None for anything else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) <= 15:
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST
    return value if is_count else None


def _unknown_name(name: str, known: Collection[str]) -> str:
    near = " or ".join(nearest_names(name, known))
    return f"{name} is no setting of a plan and no axis of its mesh. Did you mean {near}?"


def _check_contradictions(wishes: Wishes) -> None:
    """Refuses wishes that no plan can meet, whatever the step and the cluster."""
    for name, values in {**wishes.one_of, **{name: (value,) for name, value in wishes.fixed.items()}}.items():
        if set(values) <= set(wishes.forbidden.get(name, ())):
            given = " or ".join(map(str, values))
            raise PlanError(f"{name}={given} is fixed and forbidden. Leave one of them out.")
    for name, words in WORDS.items():
        if set(wishes.forbidden.get(name, ())) == set(words):
            raise PlanError(f"every {name} is forbidden. Leave one of {', '.join(words)} out of forbid.")
    fixed = wishes.fixed
    schedule, stages, actors = (fixed.get(name) for name in ("schedule", "stages", "actors"))
    if isinstance(stages, int) and isinstance(actors, int) and stages % actors:
        raise PlanError(f"stages={stages} do not divide among actors={actors}. Every actor has as many stages.")
    if schedule == NO_SCHEDULE and isinstance(stages, int) and stages > 1:
        raise PlanError(f"schedule=none runs one stage, but stages={stages}. Choose one of {', '.join(SCHEDULES)}.")
    if isinstance(schedule, str) and schedule != NO_SCHEDULE and isinstance(stages, int) and isinstance(actors, int):
        try:
            make_schedule(schedule, num_stages=stages, num_actors=actors)
        except ScheduleError as error:
            raise PlanError(f"schedule={schedule}, stages={stages} and actors={actors}: {error}") from None
    for name in {wish.pattern for wish in wishes.strategies}:
        check_agreement([wish for wish in wishes.strategies if wish.pattern == name], name)


def _check_counts(
    wishes: Wishes, *, num_devices: int | None, global_batch: int | None, num_segments: int | None
) -> None:
    fixed = wishes.fixed
    actors = int(fixed.get("actors", 1))
    for name in ("stages", "actors"):
        if num_segments is not None and name in fixed and int(fixed[name]) > num_segments:
            raise PlanError(
                f"{name}={fixed[name]}, but the loss has {num_segments} segments, and a stage has one or more."
            )
    if num_devices is not None:
        used = actors
        for size in wishes.axes.values():
            used *= size
        if num_devices % used:
            sizes = " x ".join(f"{name}={fixed[name]}" for name in ("actors", *wishes.axes) if name in fixed)
            raise PlanError(f"{sizes} do not divide the {num_devices} devices. Choose sizes whose product does.")
    if global_batch is None:
        return
    count, size = (int(fixed.get(name, 1)) for name in ("microbatches", "microbatch_size"))
    both = "microbatches" in fixed and "microbatch_size" in fixed
    if global_batch % (count * size) or (both and count * size != global_batch):
        given = " x ".join(f"{name}={fixed[name]}" for name in ("microbatches", "microbatch_size") if name in fixed)
        verb = "make" if both else "divide"
        raise PlanError(f"{given} cannot {verb} the batch of {global_batch} rows. Choose a divisor of it.")
