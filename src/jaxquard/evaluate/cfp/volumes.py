"""The symbolic bytes of many plans at once."""

from collections.abc import Mapping, Sequence

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.volume import volume_problem


def volumes(analysis: Analysis, assignments: Sequence[Mapping[int, Sequence[str]]]) -> list[float]:
    """For each assignment, what `volume` gives; sums and moves are looked at once for all."""
    choices = [
        list(dict.fromkeys(tuple(assignment[block.number]) for assignment in assignments)) for block in analysis.blocks
    ]
    problem = volume_problem(analysis, choices)
    found = []
    for assignment in assignments:
        places = [names.index(tuple(assignment[number])) for number, names in enumerate(choices)]
        size_bytes = sum(float(costs[place]) for costs, place in zip(problem.costs, places, strict=True))
        size_bytes += sum(float(costs[places[a], places[b]]) for (a, b), costs in problem.edges.items())
        found.append(size_bytes)
    return found
