"""`jaxquard shard search`: the fastest sharding of a step, by measured prices."""

from pathlib import Path
from typing import Annotated

import typer

from jaxquard.cli.console import check_writable, print_json, print_text, say_written, write_file
from jaxquard.cli.options import CpuOption, JsonOption, MemoryLimitOption, parse_size
from jaxquard.cli.shard.options import (
    BatchOption,
    CacheOption,
    ClusterOption,
    DevicesOption,
    EveryOption,
    LoopBudgetOption,
    MeshOption,
    ModelArgument,
    NoCacheOption,
    choose_cache,
    parse_mesh,
)


def search(
    model: ModelArgument,
    mesh: MeshOption = None,
    devices: DevicesOption = None,
    batch_size: BatchOption = None,
    memory_limit: MemoryLimitOption = None,
    every_combination: EveryOption = False,
    cluster: ClusterOption = None,
    loop_budget: LoopBudgetOption = 300.0,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the plan to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw time against memory into this file.")
    ] = None,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    as_json: JsonOption = False,
    cpu: CpuOption = False,
) -> None:
    """Finds the fastest sharding of a training step: prices its segments by running them, then searches.

    Example: jaxquard shard search gpt-tiny --mesh 2x4 --out plan.json
    """
    sizes, limit_bytes = parse_mesh(mesh), parse_size(memory_limit)
    check_writable(out, plot)
    prices = choose_cache(cache, no_cache=no_cache)
    from jaxquard.cli.cluster.show import find_cluster
    from jaxquard.cli.devices import prepare_devices, start_mesh
    from jaxquard.cli.shard.find_step import find_step
    from jaxquard.cli.shard.run_search import run_search
    from jaxquard.intraop.plan.plan_record import plan_content
    from jaxquard.report.charts.frontier_chart import plan_chart

    chips = None if cluster is None else find_cluster(cluster)
    prepare_devices(cpu=cpu, num_devices=devices, sizes=sizes)
    step = find_step(model, batch_size=batch_size)
    plan = run_search(
        step,
        mesh=start_mesh(sizes, num_devices=devices),
        memory_limit_bytes=limit_bytes,
        every_combination=every_combination,
        cluster=chips,
        loop_budget_s=loop_budget,
        cache=prices,
    )
    if out is not None:
        plan.save(str(out))
        say_written(out)
    if plot is not None:
        write_file(plot, plan_chart(plan, title=f"{model}: time against memory", limit_bytes=limit_bytes))
    if as_json:
        print_json(plan_content(plan))
    else:
        print_text(str(plan))
