"""Bubbles against the closed forms of the papers, and against their published numbers.

A bubble is counted as the papers do: the longest time from an actor's first start to its last end
(`period_s`), less the time for which it computes.
"""

import pytest

from jaxquard.schedules import (
    DualPipeV,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    LoopedBFS,
    OneFOneB,
    TaskTimes,
    ZeroBubbleH1,
    ZeroBubbleH2,
    ZeroBubbleV,
    play_rows,
)

EQUAL = (1.0, 1.0, 1.0)
# Weight gradients shortest, as the closed forms of ZB-H1 and ZB-H2 want it.
SHORT_WEIGHTS = [EQUAL, (2.0, 2.0, 1.0), (18.5, 18.0, 9.5), (1.0, 1.5, 0.75)]
ANY_TIMES = [*SHORT_WEIGHTS, (1.0, 0.5, 2.0)]
SIZES = [(1, 3), (2, 4), (4, 8), (4, 16), (6, 13), (8, 24)]


def bubble_s(schedule, num_microbatches, times, transfer=0.0):
    forward, of_input, of_weight = times
    playback = play_rows(
        schedule.rows(num_microbatches),
        TaskTimes(forward_s=forward, input_gradient_s=of_input, weight_gradient_s=of_weight, transfer_s=transfer),
    )
    stages_per_actor = schedule.num_stages // schedule.num_actors
    return playback.period_s - stages_per_actor * num_microbatches * sum(times)


@pytest.mark.parametrize("times", ANY_TIMES)
@pytest.mark.parametrize(("p", "m"), [*SIZES, (4, 2), (5, 1)])
@pytest.mark.parametrize("schedule", [GPipe, OneFOneB, EagerOneFOneB])
def test_one_stage_per_actor_waits_for_fill_and_drain(schedule, p, m, times):
    assert bubble_s(schedule(p), m, times) == pytest.approx((p - 1) * sum(times))


@pytest.mark.parametrize("times", ANY_TIMES)
@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 9), (4, 4), (4, 16), (8, 24)])
@pytest.mark.parametrize("schedule", [Interleaved, LoopedBFS])
def test_chunks_divide_the_bubble(schedule, p, m, chunks, times):
    """(p-1)/v of a microbatch's time on an actor, which is v times that of a stage."""
    time_on_actor = chunks * sum(times)
    assert bubble_s(schedule(p * chunks, p), m, times) == pytest.approx((p - 1) * time_on_actor / chunks)


@pytest.mark.parametrize("transfer", [0.25, 0.5, 1.0, 1.5])
@pytest.mark.parametrize(("p", "m"), [(2, 6), (4, 16), (8, 32)])
def test_eager_one_f_one_b_hides_transfers(p, m, transfer):
    expected = (p - 1) * (sum(EQUAL) + 2 * transfer)
    assert bubble_s(EagerOneFOneB(p), m, EQUAL, transfer) == pytest.approx(expected)
    assert bubble_s(OneFOneB(p), m, EQUAL, transfer) > expected


@pytest.mark.parametrize("times", SHORT_WEIGHTS)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_zero_bubble_h1(p, m, times):
    forward, of_input, of_weight = times
    assert bubble_s(ZeroBubbleH1(p), m, times) == pytest.approx((p - 1) * (forward + of_input - of_weight))


@pytest.mark.parametrize("times", SHORT_WEIGHTS)
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 4), (4, 8), (4, 16), (6, 13), (8, 24)])
def test_zero_bubble_h2(p, m, times):
    forward, of_input, of_weight = times
    expected = (p - 1) * (forward + of_input - 2 * of_weight)
    assert bubble_s(ZeroBubbleH2(p), m, times) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 4), (2, 4), (3, 6), (4, 8), (4, 19), (8, 16)])
def test_zero_bubble_v_has_none_at_equal_times(p, m):
    assert bubble_s(ZeroBubbleV(2 * p), m, EQUAL) == 0
    playback = play_rows(ZeroBubbleV(2 * p).rows(m))
    assert playback.period_bubble == 0
    # In a lone step the parallelogram's slanted ends are left: p-1 forwards.
    assert playback.makespan_s == 6 * m + p - 1


@pytest.mark.parametrize("times", SHORT_WEIGHTS)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 6), (4, 8), (4, 20), (6, 12)])
def test_dual_pipe_v_is_within_the_published_bubble(p, m, times):
    """DeepSeek gives (p-1)(F&B + B - 3W) for DualPipe on 2p ranks, of which this is one half.

    F&B is what a forward and a backward take together. One after the other they take F + B, and
    then a backward may start before its pair is done, so that the bubble may be smaller.
    """
    forward, of_input, of_weight = times
    backward = of_input + of_weight
    published = (p - 1) * (forward + backward + backward - 3 * of_weight)
    assert bubble_s(DualPipeV(2 * p), m, times) <= published + 1e-9
    assert bubble_s(DualPipeV(2 * p), m, times) < bubble_s(Interleaved(2 * p, p), m, times)


# Zero Bubble Pipeline Parallelism, arXiv 2401.10241, tables 4, 5 and 9: 1.5B model, 8 pipeline
# stages; times in milliseconds. (m, TF, TB, TW, Tcomm, 1F1B, 1F1B-I, ZB-H1).
PUBLISHED = [
    (24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585),
    (32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242),
    (64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674),
]


def published_times(row, chunks):
    forward, of_input, of_weight = (time_ms / 1e3 / chunks for time_ms in row[1:4])
    return TaskTimes(forward_s=forward, input_gradient_s=of_input, weight_gradient_s=of_weight, transfer_s=row[4] / 1e3)


@pytest.mark.parametrize("row", PUBLISHED)
def test_published_bubble_rates(row):
    """To the last printed digit: the paper plays its measured task times as we do."""
    m, _, _, _, _, one_f_one_b, _, h1 = row
    times = published_times(row, chunks=1)
    assert play_rows(OneFOneB(8).rows(m), times).period_bubble == pytest.approx(one_f_one_b, abs=5e-5)
    assert play_rows(ZeroBubbleH1(8).rows(m), times).period_bubble == pytest.approx(h1, abs=5e-5)


@pytest.mark.parametrize("row", PUBLISHED)
def test_published_bubble_rates_of_interleaved(row):
    """Within 0.4 points: the paper does not print the times of its chunks.

    It has a layer in each of the 3 chunks of a stage, of 22 layers beside an embedding and a head;
    here a chunk takes a third of its stage.
    """
    played = play_rows(Interleaved(24, 8).rows(row[0]), published_times(row, chunks=3))
    assert played.period_bubble == pytest.approx(row[6], abs=4e-3)
