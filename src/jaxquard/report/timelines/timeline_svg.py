"""A timeline as an SVG picture, in milliseconds: a lane for each actor, below it a thin one for what it sends.

Colour shows the phase, shade the chunk, the digits the microbatch, as in `schedule_svg`; grey is work outside the loop.
A pointer that rests on a task or a transfer shows its name and times.
"""

from dataclasses import dataclass
from xml.sax.saxutils import escape

from jaxquard.ir.timeline import Span, Timeline, Track
from jaxquard.report.charts.chart_parts import GREY, draw_box, draw_line, draw_svg, draw_text, tick_times
from jaxquard.report.timelines.loop_tasks import split_fused, tasks_of
from jaxquard.report.timelines.schedule_palette import (
    OTHER_COLOR,
    PHASE_NAMES,
    ink,
    phases_used,
    shade,
    stages_by_actor,
)

_LEFT, _RIGHT, _TOP = 78.0, 14.0, 66.0
_LANE, _SENDS, _GAP = 22.0, 5.0, 7.0
_LANE_COLOR, _SEND_COLOR = "#f1f3f5", "#b7791f"
_DIGITS = 8.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lanes:
    """The places of lanes and times on the page."""

    width: float
    end_s: float

    def x(self, time_s: float) -> float:
        return _LEFT + time_s / (self.end_s or 1.0) * (self.width - _LEFT - _RIGHT)

    def y(self, actor: int) -> float:
        return _TOP + actor * (_LANE + _SENDS + _GAP)


def timeline_svg(timeline: Timeline, *, title: str, width: float = 1160, end_s: float | None = None) -> str:
    """Draws the lanes and returns the SVG.

    Args:
        end_s: where the axis ends; the same for two timelines that stand below each other.
    """
    split = split_fused(timeline)
    stages = stages_by_actor(split)
    last_s = max((span.end_s for span in split.spans), default=0.0)
    lanes = _Lanes(width=width, end_s=max(end_s or 0.0, last_s))
    bottom = lanes.y(timeline.num_actors)
    parts = [draw_text(12, 20, title, size=14, weight=600), *_draw_legend(split, stages)]
    for actor in range(timeline.num_actors):
        parts.append(draw_text(12, lanes.y(actor) + 15, f"actor {actor}", size=12))
        parts.append(draw_box(_LEFT, lanes.y(actor), width - _LEFT - _RIGHT, _LANE, _LANE_COLOR))
    parts += _draw_axis(lanes, bottom)
    parts += [_draw_span(span, lanes, stages[span.actor]) for span in split.spans]
    return draw_svg(width, bottom + 26, title, parts)


def _draw_legend(timeline: Timeline, stages: tuple[tuple[int, ...], ...]) -> list[str]:
    num_chunks = max(map(len, stages), default=1)
    entries = [(PHASE_NAMES[phase], shade(phase, 0, num_chunks)) for phase in phases_used(timeline)]
    if any(span.track is Track.COMPUTE and not tasks_of(span) for span in timeline.spans):
        entries.append(("outside the loop", OTHER_COLOR))
    if any(span.track is Track.TRANSFER for span in timeline.spans):
        entries.append(("transfers (below)", _SEND_COLOR))
    entries.append(("waiting", _LANE_COLOR))
    parts, x = [], 12.0
    for name, color in entries:
        parts += [draw_box(x, 33, 12, 12, color), draw_text(x + 17, 43, name, size=12)]
        x += 34 + 6.4 * len(name)
    if num_chunks > 1:
        parts.append(draw_text(x, 43, "(darkest: an actor's first stage; lightest: its last)", size=12, fill=GREY))
    return parts


def _draw_axis(lanes: _Lanes, bottom: float) -> list[str]:
    parts = []
    per_ms = (lanes.width - _LEFT - _RIGHT) / (lanes.end_s or 1.0) / 1e3
    for tick in tick_times(lanes.end_s * 1e3, width_per_s=per_ms, spacing=70):
        x = lanes.x(tick / 1e3)
        parts.append(draw_line(x, _TOP - 5, x, bottom - 2))
        # The unit stands once, at the beginning.
        parts.append(draw_text(x, bottom + 12, f"{tick:g}" if tick else "0 ms", size=11, fill=GREY, anchor="middle"))
    return parts


def _draw_span(span: Span, lanes: _Lanes, stages: tuple[int, ...]) -> str:
    x, right = lanes.x(span.start_s), lanes.x(span.end_s)
    hint = f"{span.name}: {span.start_s * 1e3:.4g} to {span.end_s * 1e3:.4g} ms"
    if span.track is Track.TRANSFER:
        return draw_box(x, lanes.y(span.actor) + _LANE + 1, right - x, _SENDS - 1, _SEND_COLOR, hint=hint)
    tasks = tasks_of(span)
    color = shade(tasks[0].phase, stages.index(tasks[0].stage), len(stages)) if tasks else OTHER_COLOR
    gap = 0.4 if right - x > 2 else 0.0
    box = draw_box(x + gap, lanes.y(span.actor), right - x - 2 * gap, _LANE, color)
    label = ""
    digits = str(tasks[0].microbatch) if tasks else ""
    if digits and 0.62 * _DIGITS * len(digits) < right - x - 1:
        middle = (x + right) / 2
        label = draw_text(middle, lanes.y(span.actor) + 14.5, digits, size=_DIGITS, fill=ink(color), anchor="middle")
    return f"<g><title>{escape(hint)}</title>{box}{label}</g>"
