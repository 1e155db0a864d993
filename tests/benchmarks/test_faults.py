"""The disturbed run: its plan, its checks, and some faults of it."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.faults import FAULTS, OF_ANY_RUNTIME, STEPS_BETWEEN, disturb, find_differences, make_plan


def test_the_plan_follows_from_the_seed():
    assert make_plan(30, seed=3) == make_plan(30, seed=3) != make_plan(30, seed=4)


def test_the_plan_has_every_kind_of_fault_about_equally_often():
    counts = Counter(fault.kind for fault in make_plan(200, seed=0))
    assert set(counts) == set(FAULTS)
    assert sum(counts.values()) == 200
    assert max(counts.values()) - min(counts.values()) <= 1


def test_faults_come_one_after_the_other():
    steps = [fault.step for fault in make_plan(200, seed=0)]
    assert steps == sorted(steps)
    assert len(set(steps)) == 200
    assert steps[0] >= STEPS_BETWEEN


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({0: {"0x1"}, 1: {"0x2"}}, []),
        ({0: {"0x1"}}, ["the losses of 1 steps differ or are missing, the first is step 1"]),
        ({0: {"0x1"}, 1: {"0x2", "0x3"}}, ["the losses of 1 steps differ or are missing, the first is step 1"]),
        ({0: {"0x4"}, 1: {"0x3"}}, ["the losses of 2 steps differ or are missing, the first is step 0"]),
    ],
)
def test_a_loss_that_differs_once_is_found(found, problem):
    assert find_differences(found, {0: "0x1", 1: "0x2"}) == problem


# Flipped bits kill the controller too, and a kill during a restart comes after that of an actor. Full disks and deaths
# of Ray's servers have tests of their own, without the supervisor.
FEWER_OF_ANY_RUNTIME = ("flipped bits", "kill during save")
FEWER_ON_RAY = ("kill during restart",)


def check_faults(folder: Path, kinds: Sequence[str], runtime: str, *, num_faults: int) -> None:
    plan = make_plan(num_faults, seed=0, kinds=kinds)
    assert {fault.kind for fault in plan} == set(kinds)
    lines: list[str] = []
    report = disturb(folder, plan, runtime=runtime, on_fault=lines.append)
    assert report.problems == [], "\n".join(lines)
    assert Counter(fault.kind for fault in plan) == {kind: len(times) for kind, times in report.recovery_s.items()}


@pytest.mark.parametrize(
    ("kinds", "num_faults"), [(FEWER_OF_ANY_RUNTIME, 2), pytest.param(OF_ANY_RUNTIME, 5, marks=pytest.mark.slow)]
)
def test_faults_of_any_runtime(tmp_path: Path, kinds, num_faults):
    """Three are in `make test`: these, which need no Ray and start sooner without it, and one on Ray."""
    check_faults(tmp_path, kinds, "in_process", num_faults=num_faults)


@pytest.mark.ray
@pytest.mark.parametrize(
    ("kinds", "num_faults"), [(FEWER_ON_RAY, 1), pytest.param(tuple(FAULTS), 10, marks=pytest.mark.slow)]
)
def test_faults_on_ray(tmp_path: Path, kinds, num_faults):
    pytest.importorskip("ray")
    check_faults(tmp_path, kinds, "ray", num_faults=num_faults)
