"""Bubbles of the zero-bubble paper (arXiv 2401.10241, tables 4, 5 and 9), from its own measured times of tasks."""

import pytest

from jaxquard.schedules import OneFOneB, ZeroBubbleH1
from jaxquard.simulate import ActorLink, StageCost, play_pipeline

# Microbatches; milliseconds of F, I, W and of a transfer; the bubbles of 1F1B and of ZB-H1.
ROWS = [
    (24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585),
    (32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242),
    (64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674),
]


@pytest.mark.parametrize(("count", "forward", "inputs", "weights", "transfer", "one_f_one_b", "zero_bubble"), ROWS)
def test_bubbles_come_out_to_four_digits(count, forward, inputs, weights, transfer, one_f_one_b, zero_bubble):
    cost = StageCost(forward_s=forward / 1e3, input_gradient_s=inputs / 1e3, weight_gradient_s=weights / 1e3)
    links = {(a, b): ActorLink(latency_s=transfer / 1e3) for a in range(8) for b in range(8) if a != b}
    for schedule, published in ((OneFOneB(8), one_f_one_b), (ZeroBubbleH1(8), zero_bubble)):
        playback = play_pipeline(schedule, [cost] * 8, num_microbatches=count, links=links)
        assert playback.bubble == pytest.approx(published, abs=0.00006)
