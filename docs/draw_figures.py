"""Draws the generated figures of the docs: `python -m docs.draw_figures` writes them to docs/_static.

A test holds the kept files against what this draws. The other figures in that folder are made by hand.
"""

from pathlib import Path

from jaxquard import schedules
from jaxquard.report.schedule_svg import schedule_svg

STATIC = Path(__file__).parent / "_static"


def draw_schedule() -> str:
    """1F1B on four actors."""
    schedule = schedules.OneFOneB(4)
    return schedule_svg(schedules.play_rows(schedule.rows(8)), title=repr(schedule))


FIGURES = {"schedule.svg": draw_schedule}


def main() -> None:
    for name, draw in FIGURES.items():
        (STATIC / name).write_text(draw())
        print(STATIC / name)


if __name__ == "__main__":
    main()
