"""The order of a schedule's tasks as numbers, for schedules of ours and of others."""

from dataclasses import dataclass, field

import pytest

from jaxquard.ir.task import Phase
from jaxquard.schedules.patterns.pattern import PatternSchedule
from jaxquard.simulate.task_order import order_tasks


class Rounds(PatternSchedule):
    """A schedule of one stage with an attribute that it is not compared by: forwards in rounds of so many."""

    def __init__(self, length):
        PatternSchedule.__init__(self, num_stages=1)
        object.__setattr__(self, "length", length)

    def pattern(self, actor, num_microbatches):
        for _ in range(num_microbatches // self.length):
            yield from [(0, Phase.FORWARD)] * self.length
            yield from [(0, Phase.BACKWARD)] * self.length


@dataclass(frozen=True)
class Listed(PatternSchedule):
    """A schedule with a field that has no hash."""

    names: list = field(default_factory=list)

    def pattern(self, actor, num_microbatches):
        return [(0, phase) for _ in range(num_microbatches) for phase in (Phase.FORWARD, Phase.BACKWARD)]


@pytest.mark.parametrize("length", [1, 2, 4])
def test_schedules_that_are_equal_but_for_their_rows(length):
    schedule = Rounds(length)
    assert order_tasks(schedule, 4).rows() == schedule.rows(4)


def test_a_schedule_without_a_hash():
    schedule = Listed(1)
    assert order_tasks(schedule, 4).rows() == schedule.rows(4)
