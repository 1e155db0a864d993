"""Ticks of an axis: round, far enough apart, up to the end."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.report.charts.chart_parts import tick_times


def test_ticks_are_round():
    assert tick_times(69, width_per_s=1, spacing=8) == [0, 10, 20, 30, 40, 50, 60]
    assert tick_times(9, width_per_s=4, spacing=8) == [0, 2, 4, 6, 8]
    assert tick_times(0.01, width_per_s=8000, spacing=8) == pytest.approx([i * 0.001 for i in range(11)])
    assert tick_times(0, width_per_s=1, spacing=8) == [0]


@given(makespan=st.floats(1e-6, 1e6), columns=st.integers(10, 300), spacing=st.integers(1, 60))
def test_ticks_are_apart_and_within(makespan, columns, spacing):
    width_per_s = columns / makespan
    ticks = tick_times(makespan, width_per_s=width_per_s, spacing=spacing)
    assert ticks[0] == 0
    assert ticks[-1] <= makespan * (1 + 1e-6)
    gaps = [(after - before) * width_per_s for before, after in itertools.pairwise(ticks)]
    assert min(gaps, default=spacing) >= spacing * 0.999
