"""A simulated pipeline as one HTML page: its numbers, its timeline, a measured one below it, its memory over time."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.ir.timeline import Timeline
from jaxquard.report.charts.step_chart import StepSeries, step_chart
from jaxquard.report.html_page import html_page, html_paragraph, html_section, html_table
from jaxquard.report.timelines.timeline_svg import timeline_svg
from jaxquard.simulate.pipeline_playback import PipelinePlayback

# More boxes than this make a page that no browser scrolls well.
MOST_DRAWN = 20_000
_COLORS = ("#3b6fb0", "#2f9e8c", "#c45a6c", "#ddb84a", "#7b5ea7", "#6b7280")
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """The texts of a page that the simulator does not know.

    Attributes:
        lines: a sentence each, above all.
        limit_bytes: memory of a chip; None: unknown.
        measured: a timeline to draw below the simulated one.
    """

    title: str
    lines: Sequence[str]
    limit_bytes: int | None = None
    measured: Timeline | None = None


def pipeline_page(playback: PipelinePlayback, report: PipelineReport) -> str:
    """One page that needs nothing else."""
    sections = [_timelines(playback, report), _memory(playback, report), _actors(playback)]
    return html_page(report.title, "\n".join(map(html_paragraph, report.lines)), sections)


def _timelines(playback: PipelinePlayback, report: PipelineReport) -> str:
    num_tasks = len(playback.starts_s)
    if num_tasks > MOST_DRAWN:
        text = f"{num_tasks} tasks are too many to draw. A Perfetto trace (--out FILE.json) shows them all."
        return html_section("timeline", "Timeline", html_paragraph(text, is_note=True))
    timeline, measured = playback.timeline, report.measured
    end_s = max(playback.step_time_s, measured.time_s if measured else 0.0)
    drawings = [timeline_svg(timeline, title="simulated", end_s=end_s)]
    if measured is not None:
        drawings.append(timeline_svg(measured, title="measured", end_s=end_s))
    return html_section("timeline", "Timeline", *(f'<div class="wide">{drawing}</div>' for drawing in drawings))


def _memory(playback: PipelinePlayback, report: PipelineReport) -> str:
    peaks = playback.peaks_bytes
    if not any(peaks):
        return html_section("memory", "Memory", html_paragraph("No sizes were given.", is_note=True))
    fullest = max(range(len(peaks)), key=peaks.__getitem__)
    limit = None if report.limit_bytes is None else (report.limit_bytes / _GB, "memory for a step")
    middle = len(peaks) // 2
    chosen = sorted({0, middle, len(peaks) - 1, fullest})
    of_actors = [
        StepSeries(
            name=f"actor {actor}",
            color=color,
            times=(playback.memory[actor].times_s * 1e3).tolist(),
            values=(playback.memory[actor].size_bytes / _GB).tolist(),
        )
        for actor, color in zip(chosen, _COLORS, strict=False)
    ]
    memory = playback.memory[fullest]
    of_parts = [
        StepSeries(name=part, color=color, times=(memory.times_s * 1e3).tolist(), values=(sizes / _GB).tolist())
        for (part, sizes), color in zip(memory.parts.items(), _COLORS, strict=False)
        if sizes.any()
    ]
    end = playback.step_time_s * 1e3
    charts = [
        step_chart("some actors", of_actors, end=end, time_name="ms", value_name="GB a chip", limit=limit),
        step_chart(
            f"what fills actor {fullest}, the fullest", of_parts, end=end, time_name="ms", value_name="GB a chip"
        ),
    ]
    return html_section("memory", "Memory over time", *(f'<div class="wide">{chart}</div>' for chart in charts))


def _actors(playback: PipelinePlayback) -> str:
    header = ["actor", "busy", "bubble"]
    has_sizes = any(playback.peaks_bytes)
    if has_sizes:
        header += ["peak", *playback.memory[0].parts]
    rows = []
    for actor, memory in enumerate(playback.memory):
        row = [f"{actor}", f"{playback.busy_s[actor] * 1e3:.4g} ms", f"{100 * playback.actor_bubbles[actor]:.1f} %"]
        if has_sizes:
            row += [f"{size / _GB:.2f} GB" for size in (memory.peak_bytes, *memory.peak_parts().values())]
        rows.append(row)
    return html_section("actors", "Actors", html_table(header, rows))
