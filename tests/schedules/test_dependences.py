"""Dependences, direct and through others, against walking the oracle's graph."""

import itertools

import pytest

from jaxquard.ir.task import Phase, Task
from jaxquard.schedules.dependences import depends_on, made_by, needs_of
from tests.schedules import oracle

TASKS = [
    Task(stage=stage, phase=phase, microbatch=microbatch)
    for stage in range(3)
    for phase in Phase
    for microbatch in range(2)
]


def ancestors(text, present):
    found, left = set(), [text]
    while left:
        for needed in oracle.predecessors(left.pop(), present):
            if needed not in found:
                found.add(needed)
                left.append(needed)
    return found


@pytest.mark.parametrize("backward", ["B", "IW"])
def test_depends_on_is_the_transitive_closure(backward):
    tasks = [task for task in TASKS if task.phase.value in f"F{backward}"]
    present = {str(task) for task in tasks}
    for task, other in itertools.product(tasks, tasks):
        assert depends_on(task, other, num_stages=3) == (str(other) in ancestors(str(task), present)), (
            task,
            other,
        )


@pytest.mark.parametrize("backward", ["B", "IW"])
def test_needs_are_the_direct_predecessors(backward):
    tasks = [task for task in TASKS if task.phase.value in f"F{backward}"]
    makers = {made_by(task): str(task) for task in tasks}
    assert len(makers) == len(tasks)
    for task in tasks:
        needed = {makers[value] for value in needs_of(task, num_stages=3)}
        assert needed == set(oracle.predecessors(str(task), set(makers.values())))
