"""`jaxquard simulate`: the step time, bubble and memory of a pipeline on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxquard.cli.console import can_color, check_writable, make_console, print_json, print_line, write_file
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.options import JsonOption, MemoryLimitOption, choose_name, complete, parse_size
from jaxquard.cli.simulate.answer import actor_rows, answer_of, summary_lines
from jaxquard.cli.simulate.setup import (
    PipelineSetup,
    check_num_tasks,
    choose_schedule,
    setup_measured,
    setup_model,
    setup_times,
)
from jaxquard.schedules import SCHEDULES

if TYPE_CHECKING:
    from jaxquard.ir.timeline import Timeline
    from jaxquard.simulate import PipelinePlayback

_RECOMPUTES = ("none", "selective", "full")
# More tasks are no drawing for a terminal.
_MOST_DRAWN = 400


def simulate(
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A published transformer, such as gpt:175b or llama-2-70b; needs --cluster."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.toml",
            help="Where the model runs: a preset with its shape, such as h100-8x16 (16 hosts of 8 chips); or a file.",
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.csv",
            autocompletion=complete(*SCHEDULES),
            help=f"One of {', '.join(SCHEDULES)}; or a CSV with a line of tasks for each actor.",
            show_default="interleaved if there are more stages than actors, else 1f1b",
        ),
    ] = None,
    stages: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of stages.", show_default="one for each actor")
    ] = None,
    actors: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of actors.", show_default="one for each stage")
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of microbatches on a replica.", show_default="4 for each actor"),
    ] = None,
    microbatch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Sequences of a microbatch.")] = 1,
    global_batch: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Sequences of a step on all replicas, instead of --microbatches."),
    ] = None,
    sequence_length: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens of a sequence.", show_default="2048, or 4096 for a Llama"),
    ] = None,
    tensor: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Chips that share each product.", show_default="a host's, up to 8"),
    ] = None,
    data: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Data-parallel replicas.", show_default="all that the cluster has"),
    ] = None,
    recompute: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete(*_RECOMPUTES),
            help="Activations to recompute in the backward: none, selective (attention's scores) or full.",
        ),
    ] = "none",
    system: Annotated[
        str, typer.Option(metavar="NAME", help="The framework whose constants are taken: JaxPP, NeMo, Megatron, ...")
    ] = "JaxPP",
    synchronous_sends: Annotated[
        bool, typer.Option("--synchronous-sends", help="Actors compute nothing while they send or receive.")
    ] = False,
    forward_ms: Annotated[
        float | None, typer.Option(metavar="MS", min=0, help="Instead of a model: the time of a stage's forward.")
    ] = None,
    input_gradient_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", min=0, help="Time of its input gradient.", show_default="as the forward"),
    ] = None,
    weight_gradient_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", min=0, help="Time of its weight gradient.", show_default="as the forward"),
    ] = None,
    transfer_ms: Annotated[
        float | None, typer.Option(metavar="MS", min=0, help="Time of a transfer between actors.", show_default="0")
    ] = None,
    activation_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="With times: what a stage keeps of a microbatch, such as 200MB."),
    ] = None,
    memory_limit: MemoryLimitOption = None,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="A trace, as jaxquard demo writes it, to play and to compare with."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page (FILE.html) or a trace for Perfetto (FILE.json)."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the timeline to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulates a pipeline on a cluster that need not be here: step time, bubble, memory, and whether it fits.

    Example: jaxquard simulate --model gpt:175b --cluster h100-8x16 --actors 8

    Example: jaxquard simulate --schedule gpipe --stages 8 --forward-ms 10
    """
    check_writable(out, plot)
    if out is not None and out.suffix not in (".html", ".json"):
        raise UsageError(f"--out should end in .html (a page) or .json (a trace for Perfetto), but is {out}.")
    _check_source(model, cluster, forward_ms, measured)
    recompute = choose_name(recompute, _RECOMPUTES, kind="recompute")
    limit_bytes, activation_bytes = parse_size(memory_limit), parse_size(activation_size, option="--activation-size")
    trace = _read_trace(measured)
    chosen = choose_schedule(schedule, stages=stages, actors=actors, measured=trace)
    if model is not None:
        from jaxquard.cli.cluster.show import find_cluster

        setup = setup_model(
            chosen,
            model,
            find_cluster(cluster or ""),
            system=system,
            seq=sequence_length,
            tensor=tensor,
            data=data,
            microbatches=microbatches,
            microbatch_size=microbatch_size,
            global_batch=global_batch,
            recompute=recompute,
        )
    elif forward_ms is not None:
        setup = setup_times(
            chosen,
            microbatches=microbatches,
            forward_ms=forward_ms,
            input_gradient_ms=input_gradient_ms,
            weight_gradient_ms=weight_gradient_ms,
            transfer_ms=transfer_ms or 0.0,
            activation_bytes=activation_bytes or 0,
        )
    else:
        assert trace is not None
        setup = setup_measured(chosen, trace, microbatches=microbatches, transfer_ms=transfer_ms)
    setup = setup.with_limit(limit_bytes)
    playback = _play(setup, synchronous_sends=synchronous_sends)
    answer = answer_of(setup, playback, trace)
    _write(setup, playback, summary_lines(setup, answer), trace, out=out, plot=plot)
    if as_json:
        print_json(answer)
    else:
        _print(setup, playback, answer)


def _check_source(model: str | None, cluster: str | None, forward_ms: float | None, measured: Path | None) -> None:
    if model is not None and forward_ms is not None:
        raise UsageError("--model gives the times of tasks, and so does --forward-ms. Leave one of them out.")
    if model is None and forward_ms is None and measured is None:
        raise UsageError(
            "nothing gives the times of tasks. Add --model and --cluster, say --model gpt:175b --cluster h100-8x16; or "
            "--forward-ms; or --measured."
        )
    if model is not None and cluster is None:
        raise UsageError("--model needs --cluster, the hardware that it runs on. Add, say, --cluster h100-8x16.")
    if model is None and cluster is not None:
        raise UsageError("--cluster is for a --model: times that are given need none. Add --model, or leave it out.")


def _read_trace(path: Path | None) -> "Timeline | None":
    if path is None:
        return None
    from jaxquard.report.timelines.perfetto import read_perfetto

    return read_perfetto(path)


def _play(setup: PipelineSetup, *, synchronous_sends: bool) -> "PipelinePlayback":
    from jaxquard.simulate import play_pipeline

    check_num_tasks(setup.schedule, setup.num_microbatches)
    return play_pipeline(
        setup.schedule,
        setup.costs,
        num_microbatches=setup.num_microbatches,
        links=setup.links,
        synchronous_sends=synchronous_sends,
    )


def _write(
    setup: PipelineSetup,
    playback: "PipelinePlayback",
    lines: list[str],
    measured: "Timeline | None",
    *,
    out: Path | None,
    plot: Path | None,
) -> None:
    if plot is not None:
        from jaxquard.report.timelines.timeline_svg import timeline_svg

        write_file(plot, timeline_svg(playback.timeline, title=setup.title))
    if out is None:
        return
    if out.suffix == ".html":
        from jaxquard.report.pipeline_page import PipelineReport, pipeline_page

        report = PipelineReport(title=setup.title, lines=lines, limit_bytes=setup.limit_bytes, measured=measured)
        write_file(out, pipeline_page(playback, report))
    else:
        from jaxquard.report.timelines.perfetto import write_perfetto

        write_file(out, write_perfetto(playback.timeline))


def _print(setup: PipelineSetup, playback: "PipelinePlayback", answer: dict[str, object]) -> None:
    from rich.table import Table

    console = make_console()
    print_line(console, setup.title, style="bold")
    if len(playback.starts_s) <= _MOST_DRAWN:
        from jaxquard.report.timelines.timeline_grid import timeline_grid

        grid = timeline_grid(playback.timeline, width=console.width, color=can_color(console))
        console.print(grid, soft_wrap=True)
    header, rows = actor_rows(answer)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in header:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in summary_lines(setup, answer):
        print_line(console, line)
