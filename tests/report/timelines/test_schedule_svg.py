"""The SVG: well-formed, complete, within its page, and saying its numbers."""

import xml.etree.ElementTree as ElementTree

from hypothesis import given

from jaxquard.ir.timeline import Track
from jaxquard.report.timelines.schedule_svg import schedule_caption, schedule_svg
from jaxquard.schedules import Custom, DualPipeV, GPipe, OneFOneB, TaskTimes, ZeroBubbleV, play_rows
from tests.schedules.strategies import MANY, microbatch_counts, schedules

NAMESPACE = "{http://www.w3.org/2000/svg}"


def draw(schedule, num_microbatches, title="a title", times=None):
    played = play_rows(schedule.rows(num_microbatches), times)
    return played, ElementTree.fromstring(schedule_svg(played, title=title))


def texts(root):
    return [element.text for element in root.iter(f"{NAMESPACE}text")]


@MANY
@given(schedule=schedules(), num_microbatches=microbatch_counts)
def test_every_task_is_drawn_within_the_page(schedule, num_microbatches):
    played, root = draw(schedule, num_microbatches)
    hints = [element.text.split(",")[0] for element in root.iter(f"{NAMESPACE}title")]
    assert hints == [span.name for span in played.timeline.spans if span.track is Track.COMPUTE]
    width, height = float(root.get("width")), float(root.get("height"))
    for box in list(root.iter(f"{NAMESPACE}rect"))[1:]:
        assert 0 <= float(box.get("x")) <= float(box.get("x")) + float(box.get("width")) <= width
        assert 0 <= float(box.get("y")) <= float(box.get("y")) + float(box.get("height")) <= height


def test_labels_legend_and_caption():
    played, root = draw(DualPipeV(8), 16, title="DualPipeV(8), 16 microbatches")
    words = texts(root)
    assert words[0] == "DualPipeV(8), 16 microbatches"
    assert {"forward", "backward", "input gradient", "weight gradient", "waiting", "peak"} <= set(words)
    assert {"actor 0", "actor 3", "stages 0, 7", "stages 3, 4", "15"} <= set(words)
    assert words[-1] == schedule_caption(played)


def test_only_the_phases_used_are_in_the_legend():
    words = texts(draw(OneFOneB(2), 2)[1])
    assert {"forward", "backward", "stage 0"} <= set(words)
    assert not {"input gradient", "weight gradient"} & set(words)


def test_an_actor_without_tasks():
    assert "actor 1" in texts(draw(Custom(["0F0,0B0", ""]), 1)[1])


def test_titles_are_escaped():
    assert texts(draw(GPipe(2), 1, title="a <b> & c")[1])[0] == "a <b> & c"


def test_a_long_schedule_stays_within_bounds():
    _, root = draw(ZeroBubbleV(4), 400)
    assert float(root.get("width")) < 8300


def test_tasks_that_take_no_time():
    nothing = TaskTimes(forward_s=0, input_gradient_s=0, weight_gradient_s=0)
    assert "actor 1" in texts(draw(GPipe(2), 1, times=nothing)[1])
