"""Colours: distinct, and readable ink on each."""

import pytest

from jaxquard.ir.task import Phase
from jaxquard.report.timelines.schedule_palette import ink, phases_used, shade, stages_by_actor
from jaxquard.schedules import Interleaved, OneFOneB, TaskTimes, play_rows


def luminance(color):
    channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("chunk", range(4))
def test_ink_can_be_read(phase, chunk):
    """A contrast of 3 to 1 or more, what WCAG asks of large text and pictures."""
    background = shade(phase, chunk, 4)
    dark, light = sorted([luminance(background), luminance(ink(background))])
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_colours_differ():
    colors = [shade(phase, chunk, 4) for phase in Phase for chunk in range(4)]
    assert len(set(colors)) == 16


def test_stages_and_phases_of_a_timeline():
    timeline = play_rows(Interleaved(4, 2).rows(2), TaskTimes(transfer_s=1)).timeline
    assert stages_by_actor(timeline) == ((0, 2), (1, 3))
    assert phases_used(play_rows(OneFOneB(2).rows(1)).timeline) == (Phase.FORWARD, Phase.BACKWARD)
