"""`jaxquard schedule`: draws a pipeline schedule and says what it costs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jaxquard.cli.console import can_color, check_writable, count, make_console, print_json, print_line, write_file
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.options import JsonOption, choose_name, complete
from jaxquard.schedules import (
    SCHEDULES,
    Custom,
    Playback,
    Rows,
    Schedule,
    TaskTimes,
    make_schedule,
    play_rows,
    write_csv,
)

# A drawing of more is of no use to anybody, and takes minutes.
_MOST_TASKS = 1_000_000


def schedule(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.csv",
            autocompletion=complete(*SCHEDULES),
            help=f"One of {', '.join(SCHEDULES)}; or a CSV with a line of tasks (0F0,0F1,0B0,...) for each "
            "actor, as PyTorch saves its schedules.",
        ),
    ],
    stages: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of stages.")] = None,
    microbatches: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of microbatches.")] = None,
    actors: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Number of actors; interleaved and looped-bfs need it, for others it follows."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Write the order to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the drawing to this file.")] = None,
    as_json: JsonOption = False,
    forward_time: Annotated[float, typer.Option(metavar="TIME", min=0, help="Time of a forward (F).")] = 1.0,
    input_gradient_time: Annotated[
        float, typer.Option(metavar="TIME", min=0, help="Time of an input gradient (I).")
    ] = 1.0,
    weight_gradient_time: Annotated[
        float,
        typer.Option(metavar="TIME", min=0, help="Time of a weight gradient (W); a whole backward (B) takes I + W."),
    ] = 1.0,
    transfer_time: Annotated[
        float, typer.Option(metavar="TIME", min=0, help="Time of a transfer between two actors.")
    ] = 0.0,
) -> None:
    """Draws a pipeline schedule, its bubble and the activations that it keeps.

    Example: jaxquard schedule zero-bubble-v --stages 8 --microbatches 16
    """
    check_writable(out, plot)
    chosen, num_microbatches = _choose(name, stages=stages, microbatches=microbatches, actors=actors)
    rows = chosen.rows(num_microbatches)
    times = TaskTimes(
        forward_s=forward_time,
        input_gradient_s=input_gradient_time,
        weight_gradient_s=weight_gradient_time,
        transfer_s=transfer_time,
    )
    playback = play_rows(rows, times)
    title = _title(chosen, name, num_microbatches)
    if out is not None:
        write_file(out, write_csv(rows))
    if plot is not None:
        from jaxquard.report.timelines.schedule_svg import schedule_svg

        write_file(plot, schedule_svg(playback, title=title))
    if as_json:
        print_json(_content(chosen, rows, playback))
    else:
        _print(playback, title)


def _choose(name: str, *, stages: int | None, microbatches: int | None, actors: int | None) -> tuple[Schedule, int]:
    if name.endswith(".csv"):
        return _read(name, stages=stages, microbatches=microbatches, actors=actors)
    name = choose_name(name, SCHEDULES, kind="schedule", hint="; or a file that ends in .csv")
    if stages is None or microbatches is None:
        missing = "--stages" if stages is None else "--microbatches"
        raise UsageError(f"{name} needs {missing}, but it was not given. Add, say, {missing} 8.")
    if stages * microbatches > _MOST_TASKS:
        raise UsageError(
            f"--stages {stages} times --microbatches {microbatches} are more tasks than can be drawn. Give at most "
            f"{_MOST_TASKS}."
        )
    return make_schedule(name, num_stages=stages, num_actors=actors), microbatches


def _read(name: str, *, stages: int | None, microbatches: int | None, actors: int | None) -> tuple[Schedule, int]:
    custom = Custom.from_csv(Path(name))
    for option, asked, found in (
        ("--stages", stages, custom.num_stages),
        ("--actors", actors, custom.num_actors),
        ("--microbatches", microbatches, custom.num_microbatches),
    ):
        if asked not in (None, found):
            raise UsageError(f"{name} has {found} {option[2:]}, but {option} {asked} was given. Leave {option} out.")
    return custom, custom.num_microbatches


def _title(chosen: Schedule, name: str, num_microbatches: int) -> str:
    called = name if isinstance(chosen, Custom) else repr(chosen)
    stages, actors = count(chosen.num_stages, "stage"), count(chosen.num_actors, "actor")
    return f"{called}: {stages} on {actors}, {count(num_microbatches, 'microbatch')}"


def _content(chosen: Schedule, rows: Rows, playback: Playback) -> dict[str, Any]:
    return {
        "num_stages": chosen.num_stages,
        "num_actors": chosen.num_actors,
        "num_microbatches": 1 + max((task.microbatch for row in rows for task in row), default=-1),
        "time_s": playback.makespan_s,
        "bubble": playback.bubble,
        "period_s": playback.period_s,
        "period_bubble": playback.period_bubble,
        "peak_activations": list(playback.peak_activations),
        "rows": [[str(task) for task in row] for row in rows],
    }


def _print(playback: Playback, title: str) -> None:
    from jaxquard.report.timelines.schedule_grid import schedule_grid
    from jaxquard.report.timelines.schedule_svg import schedule_caption

    console = make_console()
    print_line(console, title, style="bold")
    console.print(schedule_grid(playback, width=console.width, color=can_color(console)), soft_wrap=True)
    print_line(console, schedule_caption(playback))
