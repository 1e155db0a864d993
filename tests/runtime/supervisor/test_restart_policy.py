"""Restarts: their number, their delays, and the failures after which there are none."""

import signal

import pytest

from jaxquard.runtime.supervisor.restart_policy import AttemptEnding, RestartLimits, decide_restart, find_error_line

LIMITS = RestartLimits(max_restarts=4, first_delay_s=1, max_delay_s=5)


def killed(**more):
    return AttemptEnding(returncode=-signal.SIGKILL, time_s=10.0, **more)


def failed(line, **more):
    return AttemptEnding(returncode=1, error_line=line, **{"time_s": 10.0, **more})


def test_the_delay_doubles_up_to_its_limit():
    endings = [killed() for _ in range(4)]
    delays = [decide_restart(endings[: number + 1], LIMITS).delay_s for number in range(4)]
    assert delays == [1, 2, 4, 5]


def test_a_very_large_number_of_restarts_has_a_delay():
    limits = RestartLimits(max_restarts=10_000, max_delay_s=60)
    assert decide_restart([killed()] * 5000, limits).delay_s == 60


def test_the_limit():
    decision = decide_restart([killed()] * 5, LIMITS)
    assert decision.delay_s is None
    assert (
        decision.reason == "SIGKILL (by hand, or by the kernel when memory runs out), after 4 restarts without progress"
    )


def test_no_restarts_at_all():
    assert decide_restart([killed()], RestartLimits(max_restarts=0)).delay_s is None


def test_progress_resets_the_count_and_the_delay():
    endings = [killed()] * 4 + [killed(made_progress=True)]
    assert decide_restart(endings, LIMITS).reason.startswith("restart 1 of 4 in 1 s: ")
    assert decide_restart([*endings, killed()], LIMITS).reason.startswith("restart 2 of 4 in 2 s: ")


def test_a_program_that_fails_alike_at_once_is_not_started_a_fourth_time():
    endings = [failed(f"ValueError: process {number} has no data") for number in (17, 4, 256)]
    assert decide_restart(endings[:2], LIMITS).delay_s == 2
    decision = decide_restart(endings, LIMITS)
    assert decision.delay_s is None
    assert decision.reason == (
        "it failed 3 times in the same way, each time at once: exit code 1 (ValueError: process 256 has no data)"
    )


@pytest.mark.parametrize(
    "endings",
    [
        [failed("ValueError: a"), failed("ValueError: b"), failed("ValueError: a")],
        [failed("ValueError: a", time_s=600.0)] * 3,
        [failed("ValueError: a"), failed("ValueError: a", made_progress=True), failed("ValueError: a")],
        [killed()] * 3,
        [failed("", silent_s=5.0)] * 3,
    ],
    ids=["different", "late", "progress", "signal", "hanging"],
)
def test_other_failures_are_not_alike(endings):
    assert decide_restart(endings, LIMITS).delay_s is not None


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        (failed("OSError: x"), "exit code 1 (OSError: x)"),
        (AttemptEnding(returncode=3, time_s=0.0), "exit code 3"),
        (AttemptEnding(returncode=-11, time_s=0.0, error_line="Fatal"), "SIGSEGV (Fatal)"),
        (AttemptEnding(returncode=-63, time_s=0.0), "signal 63"),
        (AttemptEnding(returncode=-6, time_s=0.0, silent_s=30.0), "no output for 30 s"),
    ],
)
def test_causes_in_words(ending, cause):
    assert ending.cause == cause


def test_the_line_that_names_the_error():
    lines = ["Traceback (most recent call last):", "  File x", "jax.errors.TypeError: y", "E0101 of a thread", ""]
    assert find_error_line(lines) == "jax.errors.TypeError: y"
    assert find_error_line(["a", " b ", ""]) == "b"
    assert find_error_line([]) == ""
    assert find_error_line(["ValueError: " + "x" * 1000]) == f"ValueError: {'x' * 285}..."
