"""The caption: time, bubbles and peak, in words."""

from jaxquard.report.timelines.schedule_svg import schedule_caption
from jaxquard.schedules import Custom, OneFOneB, ZeroBubbleV, play_rows


def caption(schedule, num_microbatches):
    return schedule_caption(play_rows(schedule.rows(num_microbatches)))


def test_one_bubble():
    assert caption(OneFOneB(8), 16) == "time 69, bubble 30.4 %, at most 8 activations kept (actor 0)"


def test_two_bubbles():
    assert caption(ZeroBubbleV(8), 16) == (
        "time 99, bubble 3.0 % (0.0 % when steps follow each other without a barrier), "
        "at most 8 activations kept (every actor)"
    )


def test_one_activation():
    assert caption(OneFOneB(1), 3) == "time 9, bubble 0.0 %, at most 1 activation kept (actor 0)"


def test_without_a_backward():
    assert caption(Custom(["0F0"]), 1) == "time 1, bubble 0.0 %, at most 0 activations kept (actor 0)"
