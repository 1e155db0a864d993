"""`jaxquard price`: the time, memory and collectives of a step on a cluster that need not be here."""

from pathlib import Path
from typing import Annotated

import typer

from jaxquard.cli.console import check_writable, make_console, print_json, write_file
from jaxquard.cli.options import JsonOption, complete
from jaxquard.cli.price.strategy import STRATEGIES
from jaxquard.cli.shard.options import (
    BatchOption,
    CacheOption,
    MeshOption,
    ModelArgument,
    NoCacheOption,
    choose_cache,
    parse_mesh,
)


def price(
    model: ModelArgument,
    cluster: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A preset with its shape, such as h100-8x4 or v5e-4x4; or a file.")
    ],
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.json",
            autocompletion=complete(*STRATEGIES),
            help=f"One of {', '.join(STRATEGIES)}; or a plan that jaxquard shard search has saved.",
        ),
    ] = "data",
    mesh: MeshOption = None,
    batch_size: BatchOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pftrace.json", help="Write the timeline of a chip for ui.perfetto.dev."),
    ] = None,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prices a training step on a cluster that need not be here, by its compiler: seconds, memory, collectives.

    Example: jaxquard price gpt-tiny --cluster cpu-8 --strategy fsdp
    """
    sizes = parse_mesh(mesh)
    check_writable(out)
    prices = choose_cache(cache, no_cache=no_cache)
    from jaxquard.cli.cluster.show import find_cluster
    from jaxquard.cli.interrupt import ends_with
    from jaxquard.cli.price.answer import price_content, print_price
    from jaxquard.cli.price.price_on_target import price_on_target
    from jaxquard.cli.shard.target_mesh import start_for_target
    from jaxquard.report.timelines.perfetto import write_perfetto

    start_for_target()
    with ends_with("Nothing is kept: the step is compiled as one program."):
        found = price_on_target(
            model, find_cluster(cluster), strategy=strategy, sizes=sizes, batch_size=batch_size, cache=prices
        )
    if out is not None:
        write_file(out, write_perfetto(found.walked.timeline))
    if as_json:
        print_json(price_content(found))
    else:
        print_price(make_console(), found)
    found.check_memory()
