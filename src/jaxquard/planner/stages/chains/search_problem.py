"""Finds the assignments of one problem: some that are found at once, and, where these may be beaten, by labels."""

from jaxquard.planner.stages.chains.label_search import FoundPath, LabelSearch
from jaxquard.planner.stages.chains.stage_problem import Completions, StageProblem, bound_completions, find_incumbents

_MAX_LABELS = 1000
# In longer chains, actors with several stages get fewer labels.
FEW_SEGMENTS = 12
_LOOPED_LABELS, _COARSE_LABELS, _TOLERANCE = 100, 30, 0.003


def search_problem(
    problem: StageProblem, slack: float, known_s: float, is_coarse: bool, is_brief: bool = False
) -> tuple[list[FoundPath], bool]:
    """Returns assignments, the fastest first, and whether the first is proven to be the fastest.

    Args:
        slack: assignments that are slower than the fastest by at most this factor come along.
        known_s: assignments that are slower are left out.
        is_coarse: keep fewer labels, and take an assignment that is proven to be within 0.3 %.
        is_brief: with several stages on an actor, take what is found at once.
    """
    completions = bound_completions(problem)
    bound_s, tolerance = completions.bound_s(problem), _TOLERANCE if is_coarse else 1e-12
    if bound_s > known_s * (1 + 1e-12):
        return [], True
    known = [
        FoundPath(options=tuple(path), time_s=problem.time_s(path))
        for path in _incumbents(problem, completions)
        if problem.peak_bytes(path).max() <= problem.limit_bytes
    ]
    known = sorted((path for path in known if path.time_s <= known_s), key=lambda path: path.time_s)
    if known and slack == 1 and known[0].time_s <= bound_s * (1 + tolerance):
        return known, problem.table.is_whole and known[0].time_s <= bound_s * (1 + 1e-12)
    if is_brief and problem.is_looped:
        return known, False
    best_s = min([known_s, *(path.time_s * slack for path in known)])
    max_labels = _MAX_LABELS
    if problem.is_looped and problem.num_segments > FEW_SEGMENTS:
        max_labels = _COARSE_LABELS if is_coarse else _LOOPED_LABELS
    search = LabelSearch(problem, completions, known_s=best_s, max_labels=max_labels)
    found = {path.options: path for path in (*search.find(), *known)}
    return sorted(found.values(), key=lambda path: path.time_s), search.is_proven and problem.table.is_whole


def _incumbents(problem: StageProblem, completions: Completions) -> list[list[int]]:
    """Returns assignments that are likely to be fast; some may not fit."""
    found = find_incumbents(problem, completions)
    if problem.is_looped and problem.has_limit:
        shared = problem.with_shares()
        found += find_incumbents(shared, bound_completions(shared))
    return found
