from hypothesis import given
from hypothesis import strategies as st

from jaxquard.pricing.communication.read_trace import exposed_time

INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: tuple(sorted(ends))), max_size=8
)


@given(INTERVALS, INTERVALS)
def test_it_is_what_a_grid_counts(communication, compute):
    def is_in(moment, intervals):
        return any(start <= moment < end for start, end in intervals)

    counted = sum(is_in(moment, communication) and not is_in(moment, compute) for moment in range(30))
    assert exposed_time(communication, compute) == counted


def test_nothing_is_under_way():
    assert exposed_time([], []) == 0
    assert exposed_time([], [(0, 5)]) == 0


def test_what_is_hidden_does_not_count():
    assert exposed_time([(2.0, 8.0)], [(0.0, 4.0), (3.0, 5.0), (7.5, 9.0)]) == 2.5
