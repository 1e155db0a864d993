"""The errors of failed steps, as users read them."""

import pytest

from jaxquard.errors import ActorFailed
from jaxquard.runtime.step_state import ActorPlace, TaskFailure, make_error


@pytest.mark.parametrize(
    ("activity", "doing"),
    [
        ("0F3", "running 0F3"),
        ("loss 2", "running loss 2"),
        ("waiting for message 3 from actor 0", "waiting for message 3 from actor 0"),
        ("idle", "idle"),
        ("unknown", "doing something unknown"),
    ],
)
def test_the_error_says_what_the_process_was_doing(activity, doing):
    place = ActorPlace(host="a (10.0.0.1)", log="the end", is_lost=True)
    failure = TaskFailure(actor=2, order=-2, task=activity, cause=RuntimeError("has died"), place=place)
    error = make_error(failure, is_intact=False)
    assert isinstance(error, ActorFailed)
    assert str(error) == (
        f"actor 2 on a (10.0.0.1) has died while {doing}. Its state is lost: call mesh.restart(), and restore a "
        "checkpoint."
    )
    assert (error.task, error.log, error.is_lost) == (activity, "the end", True)
