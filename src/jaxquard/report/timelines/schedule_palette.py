"""The colours of a drawn schedule or timeline, shared by the terminal and the SVG.

The hue shows the phase and the shade the chunk: an actor's first stage is darkest. The hues, blue,
teal, rose and sand, follow Paul Tol's "muted" set, made with colour-blind readers in mind.
"""

from jaxquard.ir.task import Phase
from jaxquard.ir.timeline import Timeline
from jaxquard.report.timelines.loop_tasks import tasks_of

PHASE_NAMES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.INPUT_GRADIENT: "input gradient",
    Phase.WEIGHT_GRADIENT: "weight gradient",
}

_HUES = {
    Phase.FORWARD: (0x3B, 0x6F, 0xB0),
    Phase.BACKWARD: (0x2F, 0x9E, 0x8C),
    Phase.INPUT_GRADIENT: (0xC4, 0x5A, 0x6C),
    Phase.WEIGHT_GRADIENT: (0xDD, 0xB8, 0x4A),
}
_LIGHTEST = 0.6
# Work outside the loop.
OTHER_COLOR = "#8a9099"


def shade(phase: Phase, chunk: int = 0, num_chunks: int = 1) -> str:
    """The colour of a phase of an actor's `chunk`-th stage, as `#rrggbb`."""
    whiteness = _LIGHTEST * chunk / max(num_chunks - 1, 1)
    return "#" + "".join(f"{round(value + (255 - value) * whiteness):02x}" for value in _HUES[phase])


def ink(background: str) -> str:
    """Dark or light text, whichever reads better on a `#rrggbb` colour."""
    red, green, blue = (int(background[start : start + 2], 16) for start in (1, 3, 5))
    return "#1a1a1a" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


def stages_by_actor(timeline: Timeline) -> tuple[tuple[int, ...], ...]:
    """For each actor its stages in order; a stage's position among them is its chunk."""
    stages: list[set[int]] = [set() for _ in range(timeline.num_actors)]
    for span in timeline.spans:
        stages[span.actor].update(task.stage for task in tasks_of(span))
    return tuple(tuple(sorted(each)) for each in stages)


def phases_used(timeline: Timeline) -> tuple[Phase, ...]:
    """The phases that occur, in the order of the legend."""
    used = {task.phase for span in timeline.spans for task in tasks_of(span)}
    return tuple(phase for phase in Phase if phase in used)
