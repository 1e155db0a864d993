"""Schedules that cannot run are refused before anything is planned, with the user's line."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from jaxquard.errors import ScheduleError, StepWarning
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
        (
            ("0F0,0B0,0F1,0B1", "1F1,1B1,1F0,1B0"),
            "deadlock: 0B0 (actor 0) waits for 1B0 (actor 1), which comes after 1F1, which waits for 0F1 (actor 0), "
            "which comes after 0B0; move 1B0 before 1F1 on actor 1, or 0F1 before 0B0 on actor 0",
        ),
    ],
    ids=["skips", "repeats", "inverts", "deadlocks"],
)
def test_rows_that_cannot_run(rows, message):
    step = MlpStep(2)
    with pytest.raises(ScheduleError) as caught:
        plan(with_schedule(step, Written(2, rows)), *step.arguments(2), num_actors=2)
    assert str(caught.value) == f"accumulate_grads at {LOOP}: {message}"


def test_custom_rows_for_another_number_of_microbatches():
    step = MlpStep(2)
    schedule = jq.schedules.Custom(["0F0,0B0", "1F0,1B0"])
    with pytest.raises(ScheduleError, match=r"written for num_microbatches=1, but num_microbatches=3 was asked for"):
        plan(with_schedule(step, schedule), *step.arguments(3), num_actors=2)


def test_stages_that_actors_cannot_share():
    with pytest.raises(ScheduleError) as caught:
        jq.schedules.Interleaved(5, 2)
    assert str(caught.value) == (
        "Interleaved(5, 2) gives every actor as many stages, but 5 stages do not divide among 2 actors. Use "
        "num_stages=4 or 6, or num_actors=1, 5."
    )


def test_a_step_without_a_loop_on_several_actors():
    """Under plain `jax.jit` it would use every device it is given; on actors it uses one."""

    def step(weight, rows):
        return jax.jit(lambda rows: rows @ weight)(rows)

    args = jnp.ones((2, 2)), jnp.ones((3, 2))
    with pytest.warns(
        StepWarning, match=r"runs on actor 0 of 2 alone: it has no accumulate_grads, whose schedule"
    ) as found:
        plan(step, *args, num_actors=2, has_state=False)
    assert len(found) == 1
    assert "or start from the loss with jaxquard.parallelize" in str(found[0].message)
    plan(step, *args, num_actors=1, has_state=False)
    plan(lambda weight, rows: jnp.sum(rows), *args, num_actors=2, has_state=False)
