"""Schedules that cannot run are refused before anything is planned, with the user's line."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import jaxquard as jq
from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Task
from tests.pipeline.mlp_step import MlpStep
from tests.pipeline.planning import plan, with_schedule


@dataclass(frozen=True, slots=True, repr=False)
class Written(jq.schedules.Schedule):
    """A schedule of the user's own, not checked when it is made."""

    text: tuple[str, ...] = ()
    name: ClassVar[str] = "written"

    def rows(self, num_microbatches):
        return tuple(tuple(map(Task.parse, row.split(","))) for row in self.text)


LOOP = f"mlp_step.py:{MlpStep.__call__.__code__.co_firstlineno + 5}"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("0F0,0F1,0B0,0B1", "1F0,1F1,1B1"), "1F0 has no backward; add 1B0, or 1I0 and 1W0, to actor 1"),
        (("0F0,0F1,0B0,0B1", "1F0,1F1,1F0,1B0,1B1"), "actor 1 runs 1F0 twice; keep one"),
        (("0F0,0F1,0B0,0B1", "1F0,1B1,1F1,1B0"), "actor 1 runs 1B1 before 1F1; put 1F1 first"),
        (("0F0,0B0,0F1,0B1", "1F1,1B1,1F0,1B0"), "0B0"),
    ],
    ids=["skips", "repeats", "inverts", "deadlocks"],
)
def test_rows_that_cannot_run(rows, message):
    step = MlpStep(2)
    with pytest.raises(ScheduleError) as caught:
        plan(with_schedule(step, Written(2, rows)), *step.arguments(2), num_actors=2)
    assert message in str(caught.value)
    assert LOOP in str(caught.value)


def test_a_deadlock_says_its_cycle():
    step = MlpStep(2)
    rows = ("0F0,0B0,0F1,0B1", "1F1,1B1,1F0,1B0")
    with pytest.raises(ScheduleError) as caught:
        plan(with_schedule(step, Written(2, rows)), *step.arguments(2), num_actors=2)
    assert "0B0" in str(caught.value)
    assert "1F1" in str(caught.value)


def test_custom_rows_for_another_number_of_microbatches():
    step = MlpStep(2)
    schedule = jq.schedules.Custom(["0F0,0B0", "1F0,1B0"])
    with pytest.raises(ScheduleError, match=r"written for num_microbatches=1, but num_microbatches=3 was asked for"):
        plan(with_schedule(step, schedule), *step.arguments(3), num_actors=2)


def test_stages_that_actors_cannot_share():
    with pytest.raises(ScheduleError, match=r"5.*2|2.*5"):
        jq.schedules.Interleaved(5, 2)
