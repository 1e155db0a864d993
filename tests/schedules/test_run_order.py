"""The run order: everything once, each task after what it needs; locks are explained."""

import pytest
from hypothesis import given

from jaxquard.errors import ScheduleError
from jaxquard.schedules import read_csv, run_order
from tests.schedules import oracle
from tests.schedules.strategies import MANY, microbatch_counts, schedules


@MANY
@given(schedule=schedules(max_actors=4), num_microbatches=microbatch_counts)
def test_each_task_comes_after_what_it_needs(schedule, num_microbatches):
    rows = schedule.rows(num_microbatches)
    order = run_order(rows)
    assert [[task for actor, task in order if actor == own] for own in range(len(rows))] == [list(row) for row in rows]
    present = {str(task) for _, task in order}
    seen: set[str] = set()
    for _, task in order:
        assert seen.issuperset(oracle.predecessors(str(task), present))
        seen.add(str(task))


def test_a_task_that_nobody_runs_is_named():
    with pytest.raises(ScheduleError) as caught:
        run_order(read_csv("0B0\n1F0,1B0"))
    assert str(caught.value) == "deadlock: 0B0 (actor 0) waits for 0F0, which no actor runs; add it"


def test_no_rows_no_order():
    assert run_order(()) == ()
