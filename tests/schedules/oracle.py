"""A second, independent checker of schedules, for the tests alone.

Works on text (`0F3`) and shares no code with jaxquard: rules are counted with sets, cycles are
found by the standard library's topological sorter, and times by relaxing a longest path until
nothing changes.
"""

import graphlib
import itertools
import re

Texts = list[list[str]]
Time = dict[str, float]


def to_texts(rows) -> Texts:
    return [[str(task) for task in row] for row in rows]


def split(text: str) -> tuple[int, str, int]:
    stage, phase, microbatch = re.fullmatch(r"(\d+)([A-Z])(\d+)", text).groups()
    return int(stage), phase, int(microbatch)


def predecessors(text: str, present: set[str]) -> list[str]:
    """The tasks, of those present, whose results a task uses."""
    stage, phase, microbatch = split(text)
    wanted = {
        "F": [f"{stage - 1}F{microbatch}"],
        "B": [f"{stage}F{microbatch}", f"{stage + 1}B{microbatch}", f"{stage + 1}I{microbatch}"],
        "I": [f"{stage}F{microbatch}", f"{stage + 1}B{microbatch}", f"{stage + 1}I{microbatch}"],
        "W": [f"{stage}I{microbatch}"],
    }[phase]
    return [task for task in wanted if task in present]


def is_valid(rows: Texts, num_stages: int, num_microbatches: int) -> bool:
    tasks = [task for row in rows for task in row]
    present = set(tasks)
    if len(tasks) != len(present) or not _is_complete(present, num_stages, num_microbatches):
        return False
    homes = {(split(task)[0], actor) for actor, row in enumerate(rows) for task in row}
    if len(homes) != num_stages:
        return False
    graph = {task: set(predecessors(task, present)) for task in tasks}
    for row in rows:
        for before, after in itertools.pairwise(row):
            graph[after].add(before)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError:
        return False
    return True


def _is_complete(present: set[str], num_stages: int, num_microbatches: int) -> bool:
    backward_sets = [{"B"}, {"I", "W"}]
    if all(split(task)[1] == "F" for task in present):
        backward_sets = [set()]
    found: dict[tuple[int, int], set[str]] = {}
    for task in present:
        stage, phase, microbatch = split(task)
        found.setdefault((stage, microbatch), set()).add(phase)
    expected = {(stage, microbatch) for stage in range(num_stages) for microbatch in range(num_microbatches)}
    return set(found) == expected and all(
        "F" in phases and phases - {"F"} in backward_sets for phases in found.values()
    )


def play(rows: Texts, times: Time, transfer: float) -> tuple[Time, Time]:
    """Start and end of each task: the longest path to it, by relaxation until nothing moves."""
    home = {task: actor for actor, row in enumerate(rows) for task in row}
    before = {after: task for row in rows for task, after in itertools.pairwise(row)}
    start: Time = dict.fromkeys(home, 0.0)
    changed = True
    while changed:
        changed = False
        for task in home:
            earliest = 0.0
            if task in before:
                earliest = start[before[task]] + times[split(before[task])[1]]
            for needed in predecessors(task, set(home)):
                delay = transfer if home[needed] != home[task] else 0.0
                earliest = max(earliest, start[needed] + times[split(needed)[1]] + delay)
            if earliest > start[task]:
                start[task], changed = earliest, True
    return start, {task: start[task] + times[split(task)[1]] for task in home}


def peak(row: list[str]) -> int:
    """The most activations kept at once, by looking at every moment anew."""
    return max(
        sum(
            split(task)[1] == "F" and not any(f"{split(task)[0]}{end}{split(task)[2]}" in row[:moment] for end in "BW")
            for task in row[:moment]
        )
        for moment in range(len(row) + 1)
    )
