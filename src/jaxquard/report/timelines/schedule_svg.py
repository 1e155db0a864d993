"""A played schedule as an SVG picture: a lane for each actor, time running to the right.

Colour shows the phase, shade the chunk, the digits the microbatch; a pointer resting on a task
shows its name and times. Needs nothing but a browser to look at.
Its caption has the numbers: time, bubble and peak of activations.
"""

from dataclasses import dataclass

from jaxquard.ir.task import Task
from jaxquard.ir.timeline import Span, Track
from jaxquard.report.charts.chart_parts import FONT, GREY, draw_text, tick_times
from jaxquard.report.timelines.schedule_palette import PHASE_NAMES, ink, phases_used, shade, stages_by_actor
from jaxquard.schedules.play import Playback

_MARGIN, _TOP, _LANE, _GAP = 24, 84, 26, 5
_WIDEST_TASK, _NARROWEST_TASK = 30, 10
_USUAL_WIDTH, _GREATEST_WIDTH = 1400, 8000
_LANE_COLOR = "#f1f3f5"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The places of things on the page, in SVG units."""

    left: float
    width_per_s: float
    makespan_s: float
    num_actors: int
    font_size: float

    def x(self, time_s: float) -> float:
        return self.left + time_s * self.width_per_s

    def y(self, actor: int) -> float:
        return _TOP + actor * (_LANE + _GAP)

    @property
    def right(self) -> float:
        return self.x(self.makespan_s)

    @property
    def bottom(self) -> float:
        return self.y(self.num_actors)


def schedule_svg(playback: Playback, *, title: str) -> str:
    """Draws lanes, axis, legend and caption, and returns the text of the SVG."""
    stages = stages_by_actor(playback.timeline)
    frame = _lay_out(playback, stages)
    caption = schedule_caption(playback)
    # Captions and legends may be longer than a short schedule: about 6.4 units a letter at size 12.
    width = max(frame.right + 60, _MARGIN * 2 + 6.4 * len(caption), 640)
    height = frame.bottom + 70
    parts = [
        draw_text(_MARGIN, 34, title, size=17, weight=600),
        *_draw_legend(playback, stages),
        *_draw_axis(frame),
        *_draw_lanes(playback, frame, stages),
        *_draw_tasks(playback, frame, stages),
        draw_text(_MARGIN, height - 18, caption, size=12, fill=GREY),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{FONT}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _lay_out(playback: Playback, stages: tuple[tuple[int, ...], ...]) -> _Frame:
    times_s = [span.time_s for span in playback.timeline.spans if span.track is Track.COMPUTE and span.time_s > 0]
    shortest_s = min(times_s, default=1.0)
    num_widths = (playback.makespan_s or 1.0) / shortest_s
    task_width = min(max(_USUAL_WIDTH / num_widths, _NARROWEST_TASK), _WIDEST_TASK, _GREATEST_WIDTH / num_widths)
    longest_label = max(len(_name_stages(each)) for each in stages)
    return _Frame(
        left=_MARGIN + 66 + 6 * longest_label,
        width_per_s=task_width / shortest_s,
        makespan_s=playback.makespan_s,
        num_actors=len(stages),
        # Two digits must fit into the narrowest task.
        font_size=min(max(0.75 * (task_width - 1), 7.0), 11.0),
    )


def _name_stages(stages: tuple[int, ...]) -> str:
    return ("stage " if len(stages) == 1 else "stages ") + ", ".join(map(str, stages))


def _draw_legend(playback: Playback, stages: tuple[tuple[int, ...], ...]) -> list[str]:
    parts, x, y = [], float(_MARGIN), 48
    num_chunks = max(map(len, stages))
    for phase in phases_used(playback.timeline):
        for chunk in range(num_chunks):
            parts.append(_box(x, y, 14, 14, shade(phase, chunk, num_chunks)))
            x += 15
        parts.append(draw_text(x + 4, y + 11, PHASE_NAMES[phase], size=12))
        x += 26 + 6.6 * len(PHASE_NAMES[phase])
    parts += [_box(x, y, 14, 14, _LANE_COLOR), draw_text(x + 19, y + 11, "waiting", size=12)]
    if num_chunks > 1:
        parts.append(
            draw_text(x + 88, y + 11, "(darkest: an actor's first stage; lightest: its last)", size=12, fill=GREY)
        )
    return parts


def _draw_axis(frame: _Frame) -> list[str]:
    parts = []
    for tick_s in tick_times(frame.makespan_s, width_per_s=frame.width_per_s, spacing=60):
        x = frame.x(tick_s)
        parts += [
            f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{frame.bottom + 2:.1f}" stroke="#d9dde2"/>',
            draw_text(x, frame.bottom + 16, f"{tick_s:g}", size=11, fill=GREY, anchor="middle"),
        ]
    return parts


def _draw_lanes(playback: Playback, frame: _Frame, stages: tuple[tuple[int, ...], ...]) -> list[str]:
    parts = [draw_text(frame.right + 12, _TOP - 8, "peak", size=11, fill=GREY)]
    for actor, peak in enumerate(playback.peak_activations):
        y = frame.y(actor)
        parts += [
            draw_text(_MARGIN, y + 17, f"actor {actor}", size=12, weight=600),
            draw_text(_MARGIN + 56, y + 17, _name_stages(stages[actor]), size=11, fill=GREY),
            _box(frame.left, y, frame.right - frame.left, _LANE, _LANE_COLOR),
            draw_text(frame.right + 12, y + 17, str(peak), size=12),
        ]
    return parts


def _draw_tasks(playback: Playback, frame: _Frame, stages: tuple[tuple[int, ...], ...]) -> list[str]:
    return [
        _draw_task(span, Task.parse(span.name), frame, stages[span.actor])
        for span in playback.timeline.spans
        if span.track is Track.COMPUTE
    ]


def _draw_task(span: Span, task: Task, frame: _Frame, stages: tuple[int, ...]) -> str:
    x, width = frame.x(span.start_s), span.time_s * frame.width_per_s
    color = shade(task.phase, stages.index(task.stage), len(stages))
    hint = f"<title>{task}, from {span.start_s:g} to {span.end_s:g}</title>"
    box = _box(x + 0.5, frame.y(span.actor), max(width - 1, 0.5), _LANE, color)
    digits = str(task.microbatch)
    if 0.65 * frame.font_size * len(digits) > width:
        return f"<g>{hint}{box}</g>"
    middle = frame.y(span.actor) + _LANE / 2 + 0.36 * frame.font_size
    label = draw_text(x + width / 2, middle, digits, size=frame.font_size, fill=ink(color), anchor="middle")
    return f"<g>{hint}{box}{label}</g>"


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2.5" fill="{fill}"/>'


def schedule_caption(playback: Playback) -> str:
    """Time, bubble and peak activations: `time 69, bubble 30.4 %, at most 8 activations (actor 0)`."""
    bubble = f"bubble {_percent(playback.bubble)}"
    if _percent(playback.period_bubble) != _percent(playback.bubble):
        bubble += f" ({_percent(playback.period_bubble)} when steps follow each other without a barrier)"
    peak = max(playback.peak_activations)
    actors = [actor for actor, count in enumerate(playback.peak_activations) if count == peak]
    where = "every actor" if len(actors) == len(playback.peak_activations) > 1 else f"actor {actors[0]}"
    kept = f"at most {peak} activation{'' if peak == 1 else 's'} kept ({where})"
    return f"time {playback.makespan_s:g}, {bubble}, {kept}"


def _percent(share: float) -> str:
    return f"{abs(share) * 100:.1f} %"
