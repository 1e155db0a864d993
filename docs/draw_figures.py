"""Draws the generated figures of the docs: `python -m docs.draw_figures` writes them to docs/_static.

A test holds the kept files against what this draws. The other figures in that folder are made by hand.
"""

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from docs.draw_imports import draw_imports
from jaxquard import schedules
from jaxquard.report.timelines.schedule_svg import schedule_svg

STATIC = Path(__file__).parent / "_static"
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "shard_search.json"

MODELS = {"gpt": "GPT", "bert": "BERT", "llama": "LLAMA", "moe": "MoE"}
# The baselines in the kept results, what they are called here, and their colours.
BASELINES = {
    "data parallel": ("data parallel", "#7d8597"),
    "zero 1": ("ZeRO-1", "#d1495b"),
    "zero 3": ("ZeRO-3", "#a05195"),
    "megatron": ("Megatron", "#2a9d8f"),
    "megatron, sequence parallel": ("Megatron, sequence parallel", "#4477cc"),
    "volume": ("minimum volume (Alpa)", "#e0a93b"),
}
WIDTH, LEFT, RIGHT, TOP, ROW = 860, 190, 830, 104, 30
LARGEST_RATIO = 3.5
STYLE = """<style>
  :root { --ground: #ffffff; --ink: #1f2937; --grey: #6b7280; --rule: #e3e6ea; --lane: #f5f6f8; }
  @media (prefers-color-scheme: dark) {
    :root { --ground: #16181b; --ink: #e5e7eb; --grey: #a2a9b4; --rule: #343a42; --lane: #1f2227; }
  }
  text { font: 12.5px -apple-system, "Segoe UI", Inter, "DejaVu Sans", sans-serif; fill: var(--ink); }
  .title { font-size: 15px; font-weight: 600; } .small { font-size: 11.5px; fill: var(--grey); }
  .middle { text-anchor: middle; } .end { text-anchor: end; }
  .ground { fill: var(--ground); } .lane { fill: var(--lane); } .rule { stroke: var(--rule); }
  .ours { stroke: var(--ink); stroke-width: 1.5; } circle { stroke: var(--ground); }
</style>"""


def draw_schedule() -> str:
    """1F1B on four actors."""
    schedule = schedules.OneFOneB(4)
    return schedule_svg(schedules.play_rows(schedule.rows(8)), title=repr(schedule))


def draw_benchmarks() -> str:
    """The baselines of each measured cell, as ratios to the plan that the search chose."""
    cells = [cell for cell in json.loads(RESULTS.read_text())["cells"] if _is_in_the_grid(cell)]
    bottom = TOP + ROW * len(cells)
    parts = [
        _text(20, 28, "Time of a step under each baseline, relative to the chosen plan", "title"),
        _text(20, 46, "8 virtual CPU devices on 2 cores, JAX 0.10.2, 2026-11-17; right of the line is slower", "small"),
        *_legend(),
        *(_lane(cell, TOP + ROW * position) for position, cell in enumerate(cells)),
    ]
    for tick in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5):
        css = "ours" if tick == 1.0 else "rule"
        parts.append(f'<line class="{css}" x1="{_x(tick):.1f}" y1="{TOP}" x2="{_x(tick):.1f}" y2="{bottom}"/>')
        parts.append(_text(_x(tick), bottom + 18, f"{tick:g}", "small middle"))
    for position, cell in enumerate(cells):
        parts += _dots(cell, TOP + ROW * position)
    height = bottom + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Time of a step under each baseline, relative to the chosen plan">\n'
        f'{STYLE}\n<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _is_in_the_grid(cell: dict[str, Any]) -> bool:
    """Two layers on one mesh axis, without a memory limit."""
    spec = cell["spec"]
    return len(spec["mesh"]) == 1 and spec["num_layers"] == 2 and cell["limit_bytes"] is None


def _x(ratio: float) -> float:
    return LEFT + 20 + (min(ratio, LARGEST_RATIO) - 0.95) / (LARGEST_RATIO - 0.95) * (RIGHT - LEFT - 20)


def _name(cell: dict[str, Any]) -> str:
    spec = cell["spec"]
    return f"{MODELS[spec['model']]}, {spec['model_dim']} wide, batch {spec['batch_size']}"


def _lane(cell: dict[str, Any], y: float) -> str:
    lane = f'<rect class="lane" x="{LEFT}" y="{y + 3:.0f}" width="{RIGHT - LEFT}" height="{ROW - 6}" rx="3"/>'
    return lane + _text(LEFT - 10, y + ROW / 2 + 4, _name(cell), "end")


def _dots(cell: dict[str, Any], y: float) -> list[str]:
    times_s = {run["name"]: run["measured_s"] for run in cell["runs"]}
    parts = []
    for baseline, (label, color) in BASELINES.items():
        ratio = times_s[baseline] / times_s[cell["chosen"]]
        hint = escape(f"{_name(cell)}: {label} takes {ratio:.2f} of the time of the chosen plan")
        circle = f'<circle cx="{_x(ratio):.1f}" cy="{y + ROW / 2:.1f}" r="6" fill="{color}">'
        parts.append(f"{circle}<title>{hint}</title></circle>")
    return parts


def _legend() -> list[str]:
    parts, x = [], 26.0
    for label, color in BASELINES.values():
        parts += [f'<circle cx="{x:.0f}" cy="70" r="6" fill="{color}"/>', _text(x + 11, 74, label)]
        x += 34 + 7.0 * len(label)
    return parts


def _text(x: float, y: float, text: str, css: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}">{escape(text)}</text>'


FIGURES = {"schedule.svg": draw_schedule, "benchmarks.svg": draw_benchmarks, "imports.svg": draw_imports}


def main() -> None:
    for name, draw in FIGURES.items():
        (STATIC / name).write_text(draw())
        print(STATIC / name)


if __name__ == "__main__":
    main()
