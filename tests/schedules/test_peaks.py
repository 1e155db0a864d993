"""The peak number of activations of each actor, against the closed forms."""

import pytest
from hypothesis import given

from jaxquard.schedules import (
    Custom,
    DualPipeV,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    LoopedBFS,
    OneFOneB,
    ZeroBubbleH1,
    ZeroBubbleH2,
    ZeroBubbleV,
    play_rows,
)
from tests.schedules import oracle
from tests.schedules.strategies import MANY, microbatch_counts, schedules

SIZES = [(1, 1), (1, 5), (2, 3), (4, 2), (4, 4), (4, 16), (6, 20)]


def peaks(schedule, num_microbatches):
    return play_rows(schedule.rows(num_microbatches)).peak_activations


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_one_stage_per_actor(p, m):
    assert peaks(GPipe(p), m) == (m,) * p
    assert peaks(OneFOneB(p), m) == tuple(min(p - stage, m) for stage in range(p))
    assert peaks(EagerOneFOneB(p), m) == tuple(min(2 * (p - stage) - 1, m) for stage in range(p))
    assert peaks(ZeroBubbleH1(p), m) == (min(p, m),) * p
    assert peaks(ZeroBubbleH2(p), m) == (min(2 * p - 1, m),) * p


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("p", "m"), [(1, 4), (2, 8), (4, 16), (4, 20)])
def test_several_chunks_per_actor(p, m, chunks):
    warm_up = [(chunks - 1) * p + 2 * (p - 1 - actor) for actor in range(p)]
    assert peaks(Interleaved(p * chunks, p), m) == tuple(count + 1 for count in warm_up)
    assert peaks(LoopedBFS(p * chunks, p), m) == (chunks * m,) * p


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 6), (2, 4), (3, 5), (4, 8), (4, 19), (8, 16)])
def test_zero_bubble_v_keeps_what_one_f_one_b_keeps(p, m):
    """2p activations of half a stage each, on every actor."""
    assert peaks(ZeroBubbleV(2 * p), m) == (2 * p,) * p


@pytest.mark.parametrize(("p", "m"), [(1, 2), (1, 6), (2, 4), (3, 6), (4, 8), (4, 19), (8, 16)])
def test_dual_pipe_v_keeps_one_more(p, m):
    """DeepSeek's table for DualPipe: PP + 1 on PP = 2p ranks, of which this is one half."""
    assert peaks(DualPipeV(2 * p), m) == (2 * p + 1,) * p


@MANY
@given(schedule=schedules(max_actors=4), num_microbatches=microbatch_counts)
def test_peaks_against_counting_anew(schedule, num_microbatches):
    rows = schedule.rows(num_microbatches)
    assert play_rows(rows).peak_activations == tuple(oracle.peak(row) for row in oracle.to_texts(rows))


def test_without_a_backward_nothing_is_kept():
    assert play_rows(Custom(["0F0,0F1", "1F0,1F1"]).rows(2)).peak_activations == (0, 0)
