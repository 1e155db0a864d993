"""The schedules by name, for the command line and for plans."""

from jaxquard.errors import ScheduleError
from jaxquard.schedules.patterns.gpipe import GPipe
from jaxquard.schedules.patterns.looped import Interleaved, Looped, LoopedBFS
from jaxquard.schedules.patterns.one_f_one_b import EagerOneFOneB, OneFOneB
from jaxquard.schedules.patterns.v_shaped import DualPipeV, ZeroBubbleV
from jaxquard.schedules.patterns.zero_bubble import ZeroBubbleH1, ZeroBubbleH2
from jaxquard.schedules.schedule import Schedule

SCHEDULES: dict[str, type[Schedule]] = {
    schedule.name: schedule
    for schedule in (
        GPipe,
        OneFOneB,
        EagerOneFOneB,
        Interleaved,
        LoopedBFS,
        ZeroBubbleH1,
        ZeroBubbleH2,
        ZeroBubbleV,
        DualPipeV,
    )
}


def find_schedule(name: str) -> type[Schedule]:
    """Finds the class of a schedule by its name.

    Raises:
        ScheduleError: if there is no such name; the message lists all names.

    Example:
        >>> jq.schedules.find_schedule("1f1b").__name__
        'OneFOneB'
    """
    if name not in SCHEDULES:
        raise ScheduleError(f"no schedule is called {name!r}. Use one of: {', '.join(SCHEDULES)}.")
    return SCHEDULES[name]


def make_schedule(name: str, *, num_stages: int, num_actors: int | None = None) -> Schedule:
    """Makes a schedule from its name.

    Args:
        name: a key of `SCHEDULES`, such as `1f1b`.
        num_stages: number of stages.
        num_actors: needed by the schedules that leave it free; for the others it may be left
            out, and is checked if given.

    Raises:
        ScheduleError: if there is no such name, or the number of actors is missing or wrong.

    Example:
        >>> jq.schedules.make_schedule("interleaved", num_stages=8, num_actors=4)
        Interleaved(8, 4)
    """
    schedule_type = find_schedule(name)
    if issubclass(schedule_type, Looped):
        if num_actors is None:
            raise ScheduleError(
                f"{name} needs num_actors, the number of actors among which the {num_stages} stages are dealt out, but "
                f"got none. Give one that divides {num_stages}."
            )
        return schedule_type(num_stages, num_actors)
    schedule = schedule_type(num_stages)
    if num_actors not in (None, schedule.num_actors):
        raise ScheduleError(
            f"{name} puts {num_stages} stages on {schedule.num_actors} actors, but {num_actors} actors were "
            "asked for. Leave the number of actors out, or use interleaved or looped-bfs."
        )
    return schedule
