"""The answer of `jaxquard demo`: schedule, losses, times and timeline, as text or for JSON."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxquard.cli.console import can_color, count, make_console, print_line
from jaxquard.cli.demo.training import Devices, Outcome, Training
from jaxquard.report.timelines.loop_tasks import loop_part
from jaxquard.report.timelines.schedule_grid import schedule_grid
from jaxquard.report.timelines.schedule_svg import schedule_caption
from jaxquard.report.timelines.timeline_grid import timeline_grid
from jaxquard.schedules import Playback

# Rounding in float32, which training amplifies from step to step.
_TOLERANCE_PER_STEP = 1e-5


def is_equal(on_actors: Outcome, in_one_jit: Outcome | None) -> bool:
    """Says whether the losses differ by rounding alone; nothing to compare with is equal."""
    return in_one_jit is None or not _unequal_steps(on_actors.differences(in_one_jit))


def _unequal_steps(differences: tuple[float, ...]) -> list[int]:
    return [step for step, found in enumerate(differences) if not found <= _TOLERANCE_PER_STEP * (step + 1)]


def demo_content(
    training: Training, devices: Devices, playback: Playback, on_actors: Outcome, in_one_jit: Outcome | None
) -> dict[str, Any]:
    """Returns the answer for JSON."""
    loop = loop_part(on_actors.timeline)
    return {
        "schedule": training.schedule.name,
        "num_stages": training.schedule.num_stages,
        "num_microbatches": training.num_microbatches,
        "num_parameters": training.num_parameters,
        "num_actors": devices.num_actors,
        "devices_per_actor": devices.per_actor,
        "platform": devices.platform,
        "runtime": devices.runtime,
        "losses": {"on_actors": on_actors.losses, "in_one_jit": in_one_jit and in_one_jit.losses},
        "is_equal": None if in_one_jit is None else is_equal(on_actors, in_one_jit),
        "step_time_s": {"on_actors": on_actors.step_time_s, "in_one_jit": in_one_jit and in_one_jit.step_time_s},
        "loop_time_s": loop.time_s,
        "bubble": {"measured": loop.bubble, "ideal": playback.bubble},
    }


def print_answer(on_actors: Outcome, in_one_jit: Outcome | None, devices: Devices, playback: Playback) -> None:
    """Prints losses, times and the measured timeline."""
    console = make_console()
    _print_losses(console, on_actors, in_one_jit)
    _print_times(console, on_actors, in_one_jit, devices)
    _print_timeline(console, on_actors, playback)
    print_line(console, "To look at the timeline, open https://ui.perfetto.dev and drop the file there.")


def print_plan(training: Training, playback: Playback, devices: Devices) -> None:
    """Prints what is trained on what, and the schedule."""
    console = make_console()
    model = f"a GPT of {count(training.num_layers, 'layer')} ({training.num_parameters / 1e6:.1f} M parameters)"
    actors = count(training.schedule.num_actors, "actor")
    print_line(console, f"Training {model} on {actors} of {devices}\n", style="bold")
    stages, microbatches = count(training.schedule.num_stages, "stage"), count(training.num_microbatches, "microbatch")
    _print_heading(console, f"The schedule: {training.schedule!r}", f"{stages}, {microbatches}")
    console.print(schedule_grid(playback, width=console.width, color=can_color(console)), soft_wrap=True)
    print_line(console, schedule_caption(playback) + "\n")


def _print_losses(console: Console, on_actors: Outcome, in_one_jit: Outcome | None) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    columns = ["step", "on actors"] + (["in one jit", "difference"] if in_one_jit else [])
    for column in columns:
        table.add_column(column, justify="right")
    differences = on_actors.differences(in_one_jit) if in_one_jit else ()
    for step, loss in enumerate(on_actors.losses):
        others = [f"{in_one_jit.losses[step]:.6f}", f"{differences[step]:.1e}"] if in_one_jit else []
        table.add_row(str(step), f"{loss:.6f}", *others)
    _print_heading(console, "The losses", "difference: relative" if in_one_jit else "")
    console.print(table)
    unequal = _unequal_steps(differences)
    if unequal:
        _print_difference(console, unequal[0], differences[unequal[0]])
    elif in_one_jit:
        console.print(f"[green]✓[/green] equal, but for rounding: they differ by at most {max(differences):.1e}")


def _print_difference(console: Console, step: int, difference: float) -> None:
    limit = _TOLERANCE_PER_STEP * (step + 1)
    line = f"✗ not equal: at step {step} the losses differ by {difference:.1e}, more than rounding would ({limit:.0e})"
    print_line(console, line, style="red")


def _print_times(console: Console, on_actors: Outcome, in_one_jit: Outcome | None, devices: Devices) -> None:
    other = f", in one jit {in_one_jit.step_time_s * 1e3:.0f} ms" if in_one_jit else ""
    cores = f" ({devices.cores_note})" if devices.cores_note else ""
    first = "with compiling, " if len(on_actors.times_s) == 1 else ""
    line = f"{first}a step took {on_actors.step_time_s * 1e3:.0f} ms{other}{cores}\n"
    print_line(console, line)


def _print_timeline(console: Console, on_actors: Outcome, playback: Playback) -> None:
    timeline = on_actors.timeline
    loop = loop_part(timeline)
    _print_heading(console, "The last step, as it ran", "")
    console.print(timeline_grid(timeline, width=console.width, color=can_color(console)), soft_wrap=True)
    bubbles = f"{loop.bubble * 100:.1f} % measured, {playback.bubble * 100:.1f} % ideal"
    line = f"step {timeline.time_s * 1e3:.0f} ms, its loop {loop.time_s * 1e3:.0f} ms; bubble of the loop {bubbles}\n"
    print_line(console, line)


def _print_heading(console: Console, heading: str, note: str) -> None:
    console.print(Text.assemble((heading, "bold"), "  " if note else "", (note, "dim")), soft_wrap=True)
