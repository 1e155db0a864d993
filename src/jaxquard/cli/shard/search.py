"""`jaxquard shard search`: the fastest sharding of a step, by measured prices or those of a cluster."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jaxquard.cli.console import check_writable, print_json, print_text, say_written, write_file
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.options import CpuOption, JsonOption, MemoryLimitOption, choose_name, parse_size
from jaxquard.cli.shard.options import (
    PRICERS,
    BatchOption,
    CacheOption,
    ClusterOption,
    DevicesOption,
    EveryOption,
    LoopBudgetOption,
    MeshOption,
    ModelArgument,
    NoCacheOption,
    PricerOption,
    SearchBudgetOption,
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
    pricer: PricerOption = "measure",
    loop_budget: LoopBudgetOption = 300.0,
    time_budget: SearchBudgetOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the plan to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw time against memory into this file.")
    ] = None,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    as_json: JsonOption = False,
    cpu: CpuOption = False,
) -> None:
    """Finds the fastest sharding of a training step: prices its segments, then searches.

    Example: jaxquard shard search gpt-tiny --mesh 2x4 --out plan.json
    """
    pricer = choose_name(pricer, PRICERS, kind="pricer")
    is_for_cluster = pricer != "measure"
    if is_for_cluster and (cluster is None or devices is not None or cpu):
        found = "no --cluster is given" if cluster is None else f"{'--cpu' if cpu else '--devices'} is given"
        runs = "runs nothing here" if pricer == "compile" else "runs on one GPU here"
        raise UsageError(
            f"--pricer {pricer} prices for the chips of --cluster and {runs}, but {found}. Give, say, --cluster "
            f"{'h100-8x4' if pricer == 'compile' else 'h200-8'} alone."
        )
    sizes, limit_bytes = parse_mesh(mesh), parse_size(memory_limit)
    check_writable(out, plot)
    prices = choose_cache(cache, no_cache=no_cache)
    from jaxquard.cli.cluster.show import find_cluster
    from jaxquard.cli.devices import prepare_devices, start_mesh
    from jaxquard.cli.shard.find_step import find_step
    from jaxquard.cli.shard.run_search import run_search
    from jaxquard.cli.shard.target_mesh import make_mock_pricer, make_pricer, start_for_target, target_mesh
    from jaxquard.intraop.plan.plan_record import plan_content
    from jaxquard.report.charts.frontier_chart import plan_chart

    chips = None if cluster is None else find_cluster(cluster)
    settings: dict[str, Any] = {"memory_limit_bytes": limit_bytes, "every_combination": every_combination}
    settings["time_budget_s"] = "default" if time_budget is None else time_budget or None
    if is_for_cluster:
        assert chips is not None
        start_for_target()
        abstract = target_mesh(chips, sizes)
        step = find_step(model, batch_size=batch_size, usual_batch_size=max(8, abstract.size))
        make = make_mock_pricer if pricer == "mock-gpu" else make_pricer
        with make(chips, abstract, prices) as target:
            plan = run_search(step, mesh=abstract, pricer=target, cache=prices, **settings)
    else:
        prepare_devices(cpu=cpu, num_devices=devices, sizes=sizes)
        step = find_step(model, batch_size=batch_size)
        used = start_mesh(sizes, num_devices=devices)
        plan = run_search(step, mesh=used, cluster=chips, loop_budget_s=loop_budget, cache=prices, **settings)
    if out is not None:
        plan.save(str(out))
        say_written(out)
    if plot is not None:
        write_file(plot, plan_chart(plan, title=f"{model}: time against memory", limit_bytes=limit_bytes))
    if as_json:
        print_json(plan_content(plan))
    else:
        print_text(str(plan))
