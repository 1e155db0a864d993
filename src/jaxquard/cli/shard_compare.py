"""`jaxquard shard compare`: a plan and the baselines, run whole, beside their predictions."""

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from jaxquard.cli.console import make_console
from jaxquard.cli.interrupt import ends_with
from jaxquard.cli.progress import ProgressBars
from jaxquard.cli.shard_options import (
    BatchOption,
    CacheOption,
    CpuOption,
    DevicesOption,
    EveryOption,
    JsonOption,
    LimitOption,
    MeshOption,
    ModelArgument,
    NoCacheOption,
    choose_cache,
    parse_mesh,
    parse_size,
    prepare_devices,
    start_mesh,
)
from jaxquard.cli.shard_run import interruptible, move_bars, run_search
from jaxquard.cli.shard_step import find_step
from jaxquard.cli.shard_whole import run_whole
from jaxquard.cli.shard_whole_text import print_runs, run_content
from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.sharding_plan import ShardingPlan, load_sharding, make_mesh


def compare(
    model: ModelArgument,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="A plan that was saved.", show_default="a search")
    ] = None,
    mesh: MeshOption = None,
    devices: DevicesOption = None,
    batch_size: BatchOption = None,
    memory_limit: LimitOption = None,
    every_combination: EveryOption = False,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    as_json: JsonOption = False,
    cpu: CpuOption = False,
) -> None:
    """Runs a plan and the usual shardings whole: how long a step takes, and how long it was predicted to take.

    Example: [bold]jaxquard shard compare gpt-tiny --plan plan.json[/bold]
    """
    sizes, limit_bytes = parse_mesh(mesh), parse_size(memory_limit)
    prices = choose_cache(cache, no_cache=no_cache)
    saved = None if plan is None else load_sharding(plan)
    if saved is not None:
        given = {"--cache": cache, "--no-cache": no_cache, "--every-combination": every_combination}
        needless = [option for option, value in given.items() if value]
        if needless:
            raise ShardingError(f"--plan runs a saved plan and searches nothing. Leave out {' and '.join(needless)}.")
        sizes = _check_mesh(saved, sizes, num_devices=devices, path=plan)
    prepare_devices(cpu=cpu, num_devices=devices, sizes=sizes)
    step = find_step(model, batch_size=batch_size)
    used = start_mesh(sizes, num_devices=devices) if saved is None else make_mesh(saved.axes)
    chosen = saved or run_search(
        step, mesh=used, memory_limit_bytes=limit_bytes, every_combination=every_combination, cache=prices
    )
    ending = interruptible(prices) if saved is None else ends_with("Whole steps are always run; nothing is kept.")
    with ending, ProgressBars() as bars:
        runs = run_whole(step, chosen, mesh=used, on_progress=move_bars(bars, "running whole"))
    if as_json:
        content = [run_content(run, limit_bytes) for run in runs]
        make_console().print(json.dumps(content, indent=2), markup=False, soft_wrap=True)
    else:
        print_runs(make_console(), runs, model=model, mesh=used, limit_bytes=limit_bytes)


def _check_mesh(
    plan: ShardingPlan, sizes: tuple[int, ...] | None, *, num_devices: int | None, path: Path | None
) -> tuple[int, ...]:
    planned = tuple(plan.axes.values())
    if num_devices is not None and num_devices < math.prod(planned):
        raise ShardingError(
            f"{path} is for {math.prod(planned)} devices, but --devices is {num_devices}. Leave --devices out."
        )
    if sizes not in (None, planned):
        found, asked = ("x".join(map(str, one)) for one in (planned, sizes or ()))
        raise ShardingError(f"{path} is for a mesh of {found}, but --mesh is {asked}. Leave --mesh out.")
    return planned
