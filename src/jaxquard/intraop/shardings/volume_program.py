"""The integer program that Alpa solves (its section 4.2): one choice for every node, minimum cost of nodes and edges.

Each node has one 0-1 variable per choice, and one of them is 1. Each edge has a variable per pair of choices; its rows
and columns add up to the variables of its ends, so that it is 1 for the pair that is chosen and 0 for the others:

    minimise    sum of costs[n] . x[n]  +  sum of edges[m, n] . y[m, n]
    such that   sum over j of x[n][j] = 1
                sum over k of y[m, n][j, k] = x[m][j]        sum over j of y[m, n][j, k] = x[n][k]

HiGHS solves it exactly. Edge variables need not be integers: the sums make them so. Among assignments of equal cost,
one with early choices is preferred.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# All preferences for early choices together may cost this part of the smallest cost.
_PREFERENCE = 1e-3
# HiGHS looks at differences down to about 1e-6, so the largest cost is scaled to this.
_LARGEST = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceProblem:
    """Costs of choices.

    Attributes:
        costs: for each node, the cost of each of its choices.
        edges: for pairs of different nodes, the cost of each pair of their choices.
    """

    costs: tuple[np.ndarray, ...] = field(repr=False)
    edges: Mapping[tuple[int, int], np.ndarray] = field(repr=False)

    def total(self, chosen: Sequence[int]) -> float:
        """Returns the cost of an assignment."""
        nodes = sum(float(costs[choice]) for costs, choice in zip(self.costs, chosen, strict=True))
        return nodes + sum(float(costs[chosen[a], chosen[b]]) for (a, b), costs in self.edges.items())


def solve_choices(problem: ChoiceProblem) -> tuple[int, ...]:
    """Returns the choice of every node such that the total is minimal.

    The program is solved twice, with and without the preference for early choices, as that could cost a little more.
    """
    if not problem.costs:
        return ()
    plain = _solve(problem, preference=0.0)
    preferred = _solve(problem, preference=_preference(problem))
    minimum = problem.total(plain)
    return preferred if problem.total(preferred) <= minimum + 1e-12 * abs(minimum) else plain


def _preference(problem: ChoiceProblem) -> float:
    """Returns the cost of a choice one place further in the order."""
    tables = [*problem.costs, *problem.edges.values()]
    smallest = min((float(np.abs(table[table != 0]).min()) for table in tables if table.any()), default=1.0)
    return _PREFERENCE * smallest / sum(len(costs) for costs in problem.costs)


def _solve(problem: ChoiceProblem, *, preference: float) -> tuple[int, ...]:
    # Loading SciPy's optimizers takes half a second, which `import jaxquard` need not.
    from scipy.optimize import Bounds, LinearConstraint, milp

    counts = [len(costs) for costs in problem.costs]
    starts = np.concatenate([[0], np.cumsum(counts)])
    tables = [table + preference * np.arange(len(table)) for table in problem.costs]
    tables += [table.ravel() for table in problem.edges.values()]
    objective = np.concatenate([table - table.min() for table in tables])
    matrix, right = _sums(counts, starts, list(problem.edges))
    is_integer = np.zeros(len(objective))
    is_integer[: starts[-1]] = 1
    result = milp(
        objective * (_LARGEST / (objective.max() or 1.0)),
        constraints=LinearConstraint(matrix, right, right),
        bounds=Bounds(0, 1),
        integrality=is_integer,
        options={"mip_rel_gap": 0.0},
    )
    assert result.x is not None, f"every node has a choice, so there is an answer: {result.message}"
    return tuple(int(np.argmax(result.x[start:stop])) for start, stop in itertools.pairwise(starts))


def _sums(counts: Sequence[int], starts: np.ndarray, pairs: Sequence[tuple[int, int]]) -> tuple[Any, np.ndarray]:
    """Returns the rows of the program, and the values that they sum to.

    There is one row for each node, then for each edge one per choice of its first end, and of its second.
    """
    from scipy import sparse

    rows, columns, values = [], [], []

    def put(row: int, places: np.ndarray, value: float) -> None:
        rows.extend([row] * len(places))
        columns.extend(places.tolist())
        values.extend([value] * len(places))

    for node, count in enumerate(counts):
        put(node, starts[node] + np.arange(count), 1.0)
    row, start = len(counts), int(starts[-1])
    for first, second in pairs:
        places = start + np.arange(counts[first] * counts[second]).reshape(counts[first], counts[second])
        for node, of_node in ((first, places), (second, places.T)):
            for choice, of_choice in enumerate(of_node):
                put(row, of_choice, 1.0)
                put(row, starts[node : node + 1] + choice, -1.0)
                row += 1
        start += places.size
    right = np.zeros(row)
    right[: len(counts)] = 1
    return sparse.csr_array((values, (rows, columns)), shape=(row, start)), right
