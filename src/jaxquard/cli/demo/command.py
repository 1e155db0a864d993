"""`jaxquard demo`: trains a small GPT on actors and in one jit, and shows that both are the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxquard.cli.console import check_writable, count, print_json, write_file
from jaxquard.cli.exit_codes import FAILED, UsageError
from jaxquard.cli.options import MOST_DEVICES, CpuOption, JsonOption, choose_name, complete, match_name

if TYPE_CHECKING:
    from jaxquard.cli.demo.training import Devices
    from jaxquard.schedules import Schedule

_TWO_STAGES_AN_ACTOR = ("interleaved", "looped-bfs", "zero-bubble-v", "dual-pipe-v")
_RUNTIMES = ("in-process", "ray")
_PLATFORMS = ("cpu", "gpu", "tpu")
_MOST_MICROBATCHES = 100_000


def demo(
    schedule: Annotated[str, typer.Option(metavar="NAME", help="The schedule, see jaxquard list schedules.")] = "1f1b",
    actors: Annotated[int, typer.Option(metavar="N", min=1, max=MOST_DEVICES, help="Number of actors.")] = 4,
    devices_per_actor: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_DEVICES,
            help="Devices of each actor, over which microbatches are sharded.",
            show_default="2 on CPU",
        ),
    ] = None,
    microbatches: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MOST_MICROBATCHES, help="Number of microbatches.")
    ] = 8,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Number of training steps.")] = 5,
    layers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Layers of the GPT.", show_default="one for each stage"),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE.json", help="Where to write the timeline of the last step, for Perfetto.")
    ] = Path("demo.pftrace.json"),
    compare: Annotated[bool, typer.Option(help="Also train in one jit, and compare the losses.")] = True,
    as_json: JsonOption = False,
    cpu: CpuOption = False,
    runtime: Annotated[
        str,
        typer.Option(
            metavar="|".join(_RUNTIMES),
            autocompletion=complete(*_RUNTIMES),
            help="in-process: the actors are threads. ray: they are processes, here or on a cluster.",
        ),
    ] = "in-process",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="With --runtime ray, the cluster: auto or HOST:6379.",
            show_default="Ray is started here",
        ),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(metavar="|".join(_PLATFORMS), help="With --runtime ray, what the actors use.", show_default="cpu"),
    ] = None,
) -> None:
    """Trains a small GPT as a pipeline on actors, beside the same step in one jit.

    Example: jaxquard demo --schedule zero-bubble-v
    """
    on_ray = _check_runtime(runtime, address=address, platform=platform, cpu=cpu) == "ray"
    if actors * (devices_per_actor or 1) > MOST_DEVICES:
        raise UsageError(f"--actors times --devices-per-actor must be at most {MOST_DEVICES}.")
    check_writable(out)
    chosen = _choose_schedule(schedule, num_actors=actors, num_layers=layers)
    from jaxquard.cli.demo.print_demo import demo_content, is_equal, print_answer, print_plan
    from jaxquard.cli.demo.run_demo import run_demo
    from jaxquard.cli.demo.training import Training
    from jaxquard.report.timelines.perfetto import write_perfetto
    from jaxquard.schedules import play_rows

    playback = play_rows(chosen.rows(microbatches))
    devices = _choose_devices(actors, devices_per_actor, cpu=cpu, on_ray=on_ray, platform=platform, address=address)
    training = Training(
        schedule=chosen,
        num_layers=layers or chosen.num_stages,
        num_microbatches=microbatches,
        microbatch_size=2 * devices.per_actor,
        num_steps=steps,
    )
    if not as_json:
        print_plan(training, playback, devices)
    on_actors, in_one_jit = run_demo(training, devices, compare=compare)
    write_file(out, write_perfetto(on_actors.timeline))
    if as_json:
        print_json(demo_content(training, devices, playback, on_actors, in_one_jit))
    else:
        print_answer(on_actors, in_one_jit, devices, playback)
    if not is_equal(on_actors, in_one_jit):
        raise typer.Exit(FAILED)


def _choose_devices(
    num_actors: int, per_actor: int | None, *, cpu: bool, on_ray: bool, platform: str | None, address: str | None
) -> "Devices":
    from jaxquard.cli.demo.training import choose_devices, choose_devices_on_ray, require_optax

    require_optax()
    if not on_ray:
        return choose_devices(num_actors=num_actors, per_actor=per_actor, cpu=cpu)
    return choose_devices_on_ray(
        num_actors=num_actors, per_actor=per_actor, platform=platform or "cpu", address=address
    )


def _check_runtime(name: str, *, address: str | None, platform: str | None, cpu: bool) -> str:
    """Returns the runtime that is meant."""
    runtime = match_name(name, _RUNTIMES)
    if runtime not in _RUNTIMES:
        raise UsageError(f"--runtime {name} is not known. Use one of: {', '.join(_RUNTIMES)}.")
    if runtime == "in-process":
        for option, value in {"address": address, "platform": platform}.items():
            if value is not None:
                raise UsageError(f"--{option} {value} has a meaning with --runtime ray alone. Leave it out.")
        return runtime
    if platform not in (None, *_PLATFORMS):
        raise UsageError(f"--platform {platform} is not known. Use one of: {', '.join(_PLATFORMS)}.")
    if cpu and platform not in (None, "cpu"):
        raise UsageError(f"--cpu and --platform {platform} contradict each other. Leave one out.")
    from jaxquard.cli.demo.training import require_ray

    require_ray()
    return runtime


def _choose_schedule(text: str, *, num_actors: int, num_layers: int | None) -> "Schedule":
    from jaxquard.schedules import SCHEDULES, make_schedule

    name = choose_name(text, SCHEDULES, kind="schedule")
    num_stages = num_actors * (2 if name in _TWO_STAGES_AN_ACTOR else 1)
    if num_layers is not None and num_layers < num_stages:
        raise UsageError(
            f"{name} on {count(num_actors, 'actor')} has {count(num_stages, 'stage')}, and each needs a layer, but "
            f"--layers is {num_layers}. Give --layers {num_stages} or more, or fewer --actors."
        )
    return make_schedule(name, num_stages=num_stages, num_actors=num_actors)
