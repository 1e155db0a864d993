"""`jaxquard shard search`: the fastest sharding of a step, by measured prices."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jaxquard.cli.console import check_writable, make_console, write_file
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
from jaxquard.cli.shard_run import run_search
from jaxquard.cli.shard_step import find_step
from jaxquard.intraop.plan.plan_record import plan_content
from jaxquard.report.plan_chart import plan_chart


def search(
    model: ModelArgument,
    mesh: MeshOption = None,
    devices: DevicesOption = None,
    batch_size: BatchOption = None,
    memory_limit: LimitOption = None,
    every_combination: EveryOption = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw time against memory into this SVG file.")] = None,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    as_json: JsonOption = False,
    cpu: CpuOption = False,
) -> None:
    """Finds the fastest sharding of a training step: prices its segments by running them, then searches.

    Example: [bold]jaxquard shard search gpt-tiny --mesh 2x4 --out plan.json --plot frontier.svg[/bold]
    """
    sizes, limit_bytes = parse_mesh(mesh), parse_size(memory_limit)
    prices = choose_cache(cache, no_cache=no_cache)
    for path in (out, plot):
        if path is not None:
            check_writable(path)
    prepare_devices(cpu=cpu, num_devices=devices, sizes=sizes)
    step = find_step(model, batch_size=batch_size)
    plan = run_search(
        step,
        mesh=start_mesh(sizes, num_devices=devices),
        memory_limit_bytes=limit_bytes,
        every_combination=every_combination,
        cache=prices,
    )
    text = json.dumps(plan_content(plan), indent=2) if as_json else str(plan)
    make_console().print(text, markup=False, soft_wrap=True)
    if out is not None:
        plan.save(str(out))
        Console(stderr=True, highlight=False).print(f"wrote {out}", markup=False, soft_wrap=True)
    if plot is not None:
        write_file(plot, plan_chart(plan, title=f"{model}: time against memory", limit_bytes=limit_bytes))
