import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.intraop.shardings.volume_program import ChoiceProblem, solve_choices


@st.composite
def problems(draw: st.DrawFn, largest: int) -> ChoiceProblem:
    """Random graphs of up to six nodes, with whole numbers as costs: if they are small, there are many ties."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    numbers = st.integers(0, largest)

    def table(*shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        values = draw(st.lists(numbers, min_size=size, max_size=size))
        return np.array(values, dtype=float).reshape(shape)

    pairs = list(itertools.combinations(range(len(counts)), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    flipped = [pair[::-1] if draw(st.booleans()) else pair for pair in chosen]
    return ChoiceProblem(
        costs=tuple(table(count) for count in counts),
        edges={(a, b): table(counts[a], counts[b]) for a, b in flipped},
    )


def all_assignments(problem: ChoiceProblem) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(costs)) for costs in problem.costs)))


@given(problems(largest=4) | problems(largest=2**36))
def test_the_total_is_that_of_the_best_of_all_assignments(problem: ChoiceProblem):
    assert problem.total(solve_choices(problem)) == min(map(problem.total, all_assignments(problem)))


@given(problems(largest=4))
def test_of_equal_assignments_one_with_the_earliest_choices_is_taken(problem: ChoiceProblem):
    totals = {chosen: problem.total(chosen) for chosen in all_assignments(problem)}
    minimum = min(totals.values())
    assert sum(solve_choices(problem)) == min(sum(chosen) for chosen, total in totals.items() if total == minimum)


def test_the_same_problem_has_the_same_answer_again():
    random = np.random.default_rng(0)
    edges = {(node, node + 1): random.integers(0, 3, (3, 3)) for node in range(29)}
    problem = ChoiceProblem(costs=tuple(random.integers(0, 3, 3) for _ in range(30)), edges=edges)
    assert solve_choices(problem) == solve_choices(problem)


def test_a_chain_is_solved_as_by_dynamic_programming():
    random = np.random.default_rng(1)
    costs = [random.integers(0, 1000, 4).astype(float) for _ in range(60)]
    tables = [random.integers(0, 1000, (4, 4)).astype(float) for _ in range(59)]
    best = costs[0]
    for cost, table in zip(costs[1:], tables, strict=True):
        best = cost + (best[:, None] + table).min(axis=0)
    problem = ChoiceProblem(costs=tuple(costs), edges={(node, node + 1): table for node, table in enumerate(tables)})
    assert problem.total(solve_choices(problem)) == best.min()


def test_nothing_to_choose():
    assert solve_choices(ChoiceProblem(costs=(), edges={})) == ()
