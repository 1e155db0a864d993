"""The disturbed run: its plan, its checks, and ten faults of it."""

from collections import Counter
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


ON_RAY = tuple(kind for kind in FAULTS if kind not in OF_ANY_RUNTIME)


def check_faults(folder: Path, plan, runtime: str) -> None:
    lines: list[str] = []
    report = disturb(folder, plan, runtime=runtime, on_fault=lines.append)
    assert report.problems == [], "\n".join(lines)
    assert Counter(fault.kind for fault in plan) == {kind: len(times) for kind, times in report.recovery_s.items()}


def test_five_faults_of_any_runtime(tmp_path: Path):
    """Ten are in `make test`: these, which need no Ray and start sooner without it, and the five on Ray."""
    plan = make_plan(5, seed=0, kinds=OF_ANY_RUNTIME)
    assert {fault.kind for fault in plan} == set(OF_ANY_RUNTIME)
    check_faults(tmp_path, plan, "in_process")


@pytest.mark.ray
def test_five_faults_on_ray(tmp_path: Path):
    pytest.importorskip("ray")
    plan = make_plan(5, seed=0, kinds=ON_RAY)
    assert {fault.kind for fault in plan} == set(ON_RAY)
    check_faults(tmp_path, plan, "ray")


@pytest.mark.ray
@pytest.mark.slow
def test_ten_faults_of_all_kinds_on_ray(tmp_path: Path):
    pytest.importorskip("ray")
    plan = make_plan(10, seed=0)
    assert {fault.kind for fault in plan} == set(FAULTS)
    check_faults(tmp_path, plan, "ray")
