"""`jaxquard cluster`: shows the clusters that are known, and measures the one at hand."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jaxquard.calibrate import Calibration, calibrate, calibration_text
from jaxquard.cli.console import check_writable, make_console, print_line, write_file
from jaxquard.cli.devices import start_devices
from jaxquard.cli.progress import ProgressBars
from jaxquard.cluster import Cluster, Collective, Network, Topology, cluster_text, load_cluster, preset_names

cluster_app = typer.Typer(no_args_is_help=True, help="Descriptions of hardware: show one, or measure your own.")


@cluster_app.command(name="show")
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE.toml]", help="Left out: the names of all presets.")
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print the TOML text, to begin a file of your own.")] = False,
) -> None:
    """Shows what a cluster's file says.

    Example: [bold]jaxquard cluster show h200[/bold]
    """
    console = make_console()
    if name is None:
        for preset in preset_names():
            print_line(console, _summary(load_cluster(preset)))
        return
    cluster = load_cluster(name)
    if toml:
        console.print(cluster_text(cluster), markup=False, soft_wrap=True, end="")
        return
    _print_chip(console, cluster)
    console.print(_links_table(cluster))


@cluster_app.command(name="calibrate")
def calibrate_command(
    out: Annotated[Path, typer.Option(help="Where to write the cluster.")] = Path("cluster.toml"),
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.toml", help="Gives what is not measured.", show_default="the preset of the devices' kind"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller samples.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use 8 virtual CPU devices even if there is a GPU.")] = False,
) -> None:
    """Measures collectives and products on the devices at hand, and writes a cluster file.

    Example: [bold]jaxquard cluster calibrate --out my.toml[/bold]
    """
    start = None if base is None else load_cluster(base)
    check_writable(out)
    devices = start_devices(cpu=cpu)
    with ProgressBars() as bars:
        calibration = calibrate(
            start, devices=devices, is_quick=quick, on_links=bars.add("links"), on_products=bars.add("products")
        )
    console = make_console()
    console.print(_fits_table(calibration))
    warnings = Console(stderr=True, highlight=False)
    for note in calibration.notes:
        style = "yellow" if "is poor" in note else ""
        warnings.print(f"note: {note}", markup=False, soft_wrap=True, style=style)
    write_file(out, calibration_text(calibration))


def _fits_table(calibration: Calibration) -> Table:
    table = _table(
        f"{calibration.cluster.name}, on {calibration.device}",
        ("", "bandwidth or speed", "sync", "launch", "samples", "median error", "worst error"),
    )
    for fit in calibration.link_fits:
        table.add_row(
            fit.kind.value,
            _bandwidth(fit.bandwidth_bytes_per_s),
            _microseconds(fit.sync_s),
            _microseconds(fit.launch_s),
            str(fit.num_samples),
            f"{fit.median_error:.1%}",
            f"{fit.worst_error:.1%}",
        )
    products = calibration.product_fit
    if products is not None:
        table.add_row(
            "products",
            _speed(products.compute.effective_flops_per_s),
            "",
            _microseconds(products.compute.launch_s),
            str(products.num_samples),
            f"{products.median_error:.1%}",
            f"{products.worst_error:.1%}",
        )
    return table


def _links_table(cluster: Cluster) -> Table:
    table = _table("links", ("", "row to row", "column to column", "sync", "launch"))
    for kind in Collective:
        links = cluster.links(kind)
        table.add_row(
            kind.value,
            _bandwidth(links.row_bandwidth_bytes_per_s),
            _bandwidth(links.column_bandwidth_bytes_per_s),
            _microseconds(links.sync_s),
            _microseconds(links.launch_s),
        )
    return table


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position == 0 else "right")
    return table


def _print_chip(console: Console, cluster: Cluster) -> None:
    compute = cluster.compute
    print_line(console, _summary(cluster), style="bold")
    print_line(console, _network_text(cluster.network))
    if compute.output_exposed or compute.accumulate_slowdown:
        print_line(
            console,
            f"A product in slices: {compute.accumulate_slowdown:.1%} slower arithmetic, {compute.output_exposed:.0%} "
            f"of an output's or fp32 sum's traffic exposed, {_microseconds(compute.launch_s)} a launch.",
        )


def _summary(cluster: Cluster) -> str:
    return (
        f"{cluster.name}: up to {cluster.num_chips} chips, {_speed(cluster.compute.effective_flops_per_s)} of "
        f"{_speed(cluster.compute.peak_flops_per_s)}, {cluster.memory.size_bytes / 1e9:.0f} GB at "
        f"{_bandwidth(cluster.memory.bandwidth_bytes_per_s)}, {cluster.network.topology.value}"
    )


def _network_text(network: Network) -> str:
    if network.topology is Topology.TORUS:
        ways = "both ways" if network.is_bidirectional else "one way"
        return f"Rows and columns have links of their own; permutes go {ways} round a ring."
    if not network.chips_per_node:
        return "Rows and columns share a chip's port."
    return (
        f"Rows and columns share a chip's port; nodes of {network.chips_per_node}, joined at "
        f"{_bandwidth(network.between_nodes_bandwidth_bytes_per_s)} a chip."
    )


def _speed(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:.3g} TFLOP/s" if flops_per_s >= 1e12 else f"{flops_per_s / 1e9:.3g} GFLOP/s"


def _bandwidth(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s < 1e12 else f"{bytes_per_s / 1e12:.3g} TB/s"


def _microseconds(time_s: float) -> str:
    return f"{time_s * 1e6:.1f} µs"
