"""Schedules: for each actor, the order of its tasks (JaxPP, section 2.2.1). Pure data, no JAX.

In: numbers of stages, actors and microbatches, or a custom order (`Custom`, `read_csv`).
Out: `Rows` of tasks (`OneFOneB(4).rows(num_microbatches=8)`), which `check_rows` checks; a `Playback` with the time of
each task (`play_rows`); one order over all actors (`run_order`).
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.schedules.auto import AUTO as AUTO
    from jaxquard.schedules.check import check_rows as check_rows
    from jaxquard.schedules.custom import Custom as Custom
    from jaxquard.schedules.patterns.gpipe import GPipe as GPipe
    from jaxquard.schedules.patterns.looped import Interleaved as Interleaved
    from jaxquard.schedules.patterns.looped import LoopedBFS as LoopedBFS
    from jaxquard.schedules.patterns.one_f_one_b import EagerOneFOneB as EagerOneFOneB
    from jaxquard.schedules.patterns.one_f_one_b import OneFOneB as OneFOneB
    from jaxquard.schedules.patterns.pattern import PatternSchedule as PatternSchedule
    from jaxquard.schedules.patterns.v_shaped import DualPipeV as DualPipeV
    from jaxquard.schedules.patterns.v_shaped import ZeroBubbleV as ZeroBubbleV
    from jaxquard.schedules.patterns.zero_bubble import ZeroBubbleH1 as ZeroBubbleH1
    from jaxquard.schedules.patterns.zero_bubble import ZeroBubbleH2 as ZeroBubbleH2
    from jaxquard.schedules.play import Playback as Playback
    from jaxquard.schedules.play import TaskTimes as TaskTimes
    from jaxquard.schedules.play import play_rows as play_rows
    from jaxquard.schedules.registry import SCHEDULES as SCHEDULES
    from jaxquard.schedules.registry import find_schedule as find_schedule
    from jaxquard.schedules.registry import make_schedule as make_schedule
    from jaxquard.schedules.rows_csv import read_csv as read_csv
    from jaxquard.schedules.rows_csv import write_csv as write_csv
    from jaxquard.schedules.run_order import run_order as run_order
    from jaxquard.schedules.schedule import Rows as Rows
    from jaxquard.schedules.schedule import Schedule as Schedule
else:
    __all__ = export_lazily(
        __name__,
        {
            "auto": ["AUTO"],
            "check": ["check_rows"],
            "custom": ["Custom"],
            "patterns.gpipe": ["GPipe"],
            "patterns.looped": ["Interleaved", "LoopedBFS"],
            "patterns.one_f_one_b": ["EagerOneFOneB", "OneFOneB"],
            "patterns.pattern": ["PatternSchedule"],
            "patterns.v_shaped": ["DualPipeV", "ZeroBubbleV"],
            "patterns.zero_bubble": ["ZeroBubbleH1", "ZeroBubbleH2"],
            "play": ["Playback", "TaskTimes", "play_rows"],
            "registry": ["SCHEDULES", "find_schedule", "make_schedule"],
            "rows_csv": ["read_csv", "write_csv"],
            "run_order": ["run_order"],
            "schedule": ["Rows", "Schedule"],
        },
    )
