"""`jaxquard shard compare`: a plan and the baselines, run as whole steps, beside their predictions."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxquard.cli.console import make_console, print_json
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.interrupt import ends_with
from jaxquard.cli.options import CpuOption, JsonOption, MemoryLimitOption, parse_size
from jaxquard.cli.shard.options import (
    BatchOption,
    CacheOption,
    DevicesOption,
    EveryOption,
    MeshOption,
    ModelArgument,
    NoCacheOption,
    choose_cache,
    parse_mesh,
)

if TYPE_CHECKING:
    from jaxquard.intraop.plan.sharding_plan import ShardingPlan


def compare(
    model: ModelArgument,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="A saved plan to run.", show_default="a search")
    ] = None,
    mesh: MeshOption = None,
    devices: DevicesOption = None,
    batch_size: BatchOption = None,
    memory_limit: MemoryLimitOption = None,
    every_combination: EveryOption = False,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    as_json: JsonOption = False,
    cpu: CpuOption = False,
) -> None:
    """Runs a plan and the baselines as whole steps: how long each takes, and how long it was predicted to take.

    Example: jaxquard shard compare gpt-tiny --plan plan.json
    """
    sizes, limit_bytes = parse_mesh(mesh), parse_size(memory_limit)
    prices = choose_cache(cache, no_cache=no_cache)
    from jaxquard.cli.devices import prepare_devices, start_mesh
    from jaxquard.cli.shard.find_step import find_step
    from jaxquard.cli.shard.run_search import interruptible, run_search
    from jaxquard.cli.shard.run_whole import print_runs, run_content, run_whole
    from jaxquard.intraop.plan.sharding_plan import load_sharding, make_device_mesh
    from jaxquard.progress import show_progress

    saved = None if plan is None else load_sharding(plan)
    if saved is not None:
        _refuse_search_options({"--cache": cache, "--no-cache": no_cache, "--every-combination": every_combination})
        sizes = _check_mesh(saved, sizes, num_devices=devices, path=plan)
    prepare_devices(cpu=cpu, num_devices=devices, sizes=sizes)
    step = find_step(model, batch_size=batch_size)
    used = start_mesh(sizes, num_devices=devices) if saved is None else make_device_mesh(saved.axes)
    chosen = saved or run_search(
        step, mesh=used, memory_limit_bytes=limit_bytes, every_combination=every_combination, cache=prices
    )
    ending = interruptible(prices) if saved is None else ends_with("Whole steps are always run; nothing is kept.")
    with ending, show_progress(True, "running whole") as move:
        runs = run_whole(step, chosen, mesh=used, on_progress=lambda one: one.move(move))
    if as_json:
        print_json([run_content(run, limit_bytes) for run in runs])
    else:
        print_runs(make_console(), runs, model=model, mesh=used, limit_bytes=limit_bytes)


def _refuse_search_options(given: dict[str, object]) -> None:
    needless = [option for option, value in given.items() if value]
    if needless:
        raise UsageError(f"--plan runs a saved plan and searches nothing. Leave out {' and '.join(needless)}.")


def _check_mesh(
    plan: "ShardingPlan", sizes: tuple[int, ...] | None, *, num_devices: int | None, path: Path | None
) -> tuple[int, ...]:
    planned = tuple(plan.axes.values())
    if num_devices is not None and num_devices < math.prod(planned):
        raise UsageError(
            f"{path} is for {math.prod(planned)} devices, but --devices is {num_devices}. Leave --devices out."
        )
    if sizes not in (None, planned):
        found, asked = ("x".join(map(str, one)) for one in (planned, sizes or ()))
        raise UsageError(f"{path} is for a mesh of {found}, but --mesh is {asked}. Leave --mesh out.")
    return planned
