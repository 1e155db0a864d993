"""`jaxquard demo`: trains a small GPT on actors and in one jit, and shows that both are the same."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxquard.cli.console import can_color, check_writable, count, make_console, print_line, write_file
from jaxquard.cli.demo_training import (
    Devices,
    Outcome,
    Training,
    choose_devices,
    choose_devices_on_ray,
    require_optax,
    require_ray,
    train_in_one_jit,
    train_on_actors,
)
from jaxquard.cli.progress import ProgressBars
from jaxquard.errors import JaxquardError
from jaxquard.report.loop_tasks import loop_part
from jaxquard.report.perfetto import write_perfetto
from jaxquard.report.schedule_caption import schedule_caption
from jaxquard.report.schedule_grid import schedule_grid
from jaxquard.report.timeline_grid import timeline_grid
from jaxquard.schedules import SCHEDULES, Playback, Schedule, find_schedule, make_schedule, play_rows

_TWO_STAGES_AN_ACTOR = ("interleaved", "looped-bfs", "zero-bubble-v", "dual-pipe-v")
_RUNTIMES = ("in-process", "ray")
_PLATFORMS = ("cpu", "gpu", "tpu")
# Rounding in float32, which training amplifies from step to step.
_TOLERANCE_PER_STEP = 1e-5


def demo(
    schedule: Annotated[str, typer.Option(help=f"One of {', '.join(SCHEDULES)}.")] = "1f1b",
    actors: Annotated[int, typer.Option(help="Number of actors.")] = 4,
    devices_per_actor: Annotated[
        int | None,
        typer.Option(help="Devices of each actor, over which microbatches are cut.", show_default="2 on CPU"),
    ] = None,
    microbatches: Annotated[int, typer.Option(help="Number of microbatches.")] = 8,
    steps: Annotated[int, typer.Option(help="Number of training steps.")] = 5,
    layers: Annotated[int | None, typer.Option(help="Layers of the GPT.", show_default="one for each stage")] = None,
    trace: Annotated[Path, typer.Option(help="Where to write the timeline of the last step.")] = Path(
        "demo.pftrace.json"
    ),
    compare: Annotated[bool, typer.Option(help="Also train in one jit, and compare the losses.")] = True,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use virtual CPU devices even if there is a GPU.")] = False,
    runtime: Annotated[
        str, typer.Option(help="in-process: the actors are threads. ray: they are processes, here or on a cluster.")
    ] = "in-process",
    address: Annotated[
        str | None,
        typer.Option(help="With --runtime ray, the cluster: auto or HOST:6379.", show_default="Ray is started here"),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(help=f"With --runtime ray, what the actors use: {', '.join(_PLATFORMS)}.", show_default="cpu"),
    ] = None,
) -> None:
    """Trains a small GPT as a pipeline on actors, beside the same step in one jit.

    Example: [bold]jaxquard demo --schedule zero-bubble-v[/bold]
    """
    _check_counts(
        actors=actors, devices_per_actor=devices_per_actor, microbatches=microbatches, steps=steps, layers=layers
    )
    _check_runtime(runtime, address=address, platform=platform, cpu=cpu)
    require_optax()
    check_writable(trace)
    chosen = _choose_schedule(schedule, num_actors=actors, num_layers=layers)
    playback = play_rows(chosen.rows(microbatches))
    if runtime == "ray":
        devices = choose_devices_on_ray(
            num_actors=actors, per_actor=devices_per_actor, platform=platform or "cpu", address=address
        )
    else:
        devices = choose_devices(num_actors=actors, per_actor=devices_per_actor, cpu=cpu)
    training = Training(
        schedule=chosen,
        num_layers=layers or chosen.num_stages,
        num_microbatches=microbatches,
        microbatch_size=2 * devices.per_actor,
        num_steps=steps,
    )
    console = make_console()
    _print_plan(console, training, playback, devices)
    on_actors, in_one_jit = _train(training, devices, compare=compare)
    is_equal = _print_losses(console, on_actors, in_one_jit)
    _print_times(console, on_actors, in_one_jit, devices)
    _print_timeline(console, on_actors, playback)
    write_file(trace, write_perfetto(on_actors.timeline))
    print_line(console, "To look at the timeline, open https://ui.perfetto.dev and drop the file there.")
    if not is_equal:
        raise typer.Exit(1)


def _check_counts(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < 1:
            option = "--" + name.replace("_", "-")
            raise JaxquardError(f"{option} must be 1 or more, but it is {value}.")


def _check_runtime(runtime: str, *, address: str | None, platform: str | None, cpu: bool) -> None:
    if runtime not in _RUNTIMES:
        raise JaxquardError(f"--runtime {runtime} is not known. Use one of: {', '.join(_RUNTIMES)}.")
    if runtime == "in-process":
        for name, value in {"address": address, "platform": platform}.items():
            if value is not None:
                raise JaxquardError(f"--{name} {value} has a meaning with --runtime ray alone. Leave it out.")
        return
    if platform not in (None, *_PLATFORMS):
        raise JaxquardError(f"--platform {platform} is not known. Use one of: {', '.join(_PLATFORMS)}.")
    if cpu and platform not in (None, "cpu"):
        raise JaxquardError(f"--cpu and --platform {platform} contradict each other. Leave one out.")
    require_ray()


def _choose_schedule(name: str, *, num_actors: int, num_layers: int | None) -> Schedule:
    find_schedule(name)
    num_stages = num_actors * (2 if name in _TWO_STAGES_AN_ACTOR else 1)
    if num_layers is not None and num_layers < num_stages:
        raise JaxquardError(
            f"{name} on {count(num_actors, 'actor')} has {count(num_stages, 'stage')}, and each needs a layer, but "
            f"--layers is {num_layers}. Give --layers {num_stages} or more, or fewer --actors."
        )
    return make_schedule(name, num_stages=num_stages, num_actors=num_actors)


def _print_plan(console: Console, training: Training, playback: Playback, devices: Devices) -> None:
    model = f"a GPT of {count(training.num_layers, 'layer')} ({training.num_parameters / 1e6:.1f} M parameters)"
    actors = count(training.schedule.num_actors, "actor")
    print_line(console, f"Training {model} on {actors} of {devices}\n", style="bold")
    stages, microbatches = count(training.schedule.num_stages, "stage"), count(training.num_microbatches, "microbatch")
    _print_heading(console, f"The schedule: {training.schedule!r}", f"{stages}, {microbatches}")
    console.print(schedule_grid(playback, width=console.width, color=can_color(console)), soft_wrap=True)
    print_line(console, schedule_caption(playback) + "\n")


def _train(training: Training, devices: Devices, *, compare: bool) -> tuple[Outcome, Outcome | None]:
    """Trains both ways; Ctrl-C ends the process with one line."""
    in_one_jit = None
    # With Ray, this process compiles nothing, and Ctrl-C must end the actors: it comes through to the mesh.
    run_on_actors = _run if devices.runtime == "ray" else _run_interruptibly
    try:
        with ProgressBars() as bars:
            started = bars.add("starting the actors", name="Ray") if devices.runtime == "ray" else None
            compiled = bars.add("compiling the tasks", name="" if started else "tracing")
            on_step = bars.add("steps on the actors")

            def on_start() -> None:
                if started is not None:
                    started(devices.num_actors, devices.num_actors, "")

            def on_compile(done: int, total: int, name: str) -> None:
                compiled(done, total, name)
                if done == total:
                    on_step(0, training.num_steps, "building the state")

            on_actors = run_on_actors(
                lambda: train_on_actors(training, devices, on_start=on_start, on_compile=on_compile, on_step=on_step)
            )
            if compare:
                on_jit_step = bars.add("steps in one jit", name="compiling")
                in_one_jit = _run_interruptibly(lambda: train_in_one_jit(training, on_step=on_jit_step))
    except KeyboardInterrupt:
        _leave()
    return on_actors, in_one_jit


def _run(work: Callable[[], Any]) -> Any:
    return work()


def _run_interruptibly(work: Callable[[], Any]) -> Any:
    """Runs work in a thread: XLA does not notice Ctrl-C, but a thread that waits does."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="jaxquard demo", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _leave() -> NoReturn:
    """Ends the process at once, as the usual way would wait for XLA to finish compiling."""
    Console(stderr=True).print("interrupted; no timeline was written")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


def _print_losses(console: Console, on_actors: Outcome, in_one_jit: Outcome | None) -> bool:
    """Prints the losses and says whether they are equal."""
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
    unequal = [step for step, found in enumerate(differences) if not found <= _TOLERANCE_PER_STEP * (step + 1)]
    if unequal:
        _print_difference(console, unequal[0], differences[unequal[0]])
    elif in_one_jit:
        console.print(f"[green]✓[/green] equal, but for rounding: they differ by at most {max(differences):.1e}")
    return not unequal


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
