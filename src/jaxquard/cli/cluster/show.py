"""`jaxquard cluster show`: a cluster's chips, links and topology."""

import os
import tomllib
from typing import TYPE_CHECKING, Annotated

import typer

from jaxquard.cli.console import make_console, print_json, print_line, print_text
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.options import JsonOption, match_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from jaxquard.cluster import Cluster, CollectiveSpeed, Level, Network


def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE.toml", help="A preset or a file; all presets, a line on each, if left out."),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print the TOML text, to begin a custom file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows a cluster's chips, links and topology.

    Example: jaxquard cluster show h200
    """
    if toml and (as_json or name is None):
        raise UsageError("--toml prints one cluster as TOML. Name one, and leave --json out.")
    from jaxquard.cluster import cluster_text, levels_of, load_cluster, preset_names

    if name is None:
        presets = [load_cluster(preset) for preset in preset_names()]
        if as_json:
            print_json([tomllib.loads(cluster_text(preset)) for preset in presets])
        else:
            print_text("\n".join(map(cluster_line, presets)))
        return
    cluster = find_cluster(name)
    if as_json:
        print_json(tomllib.loads(cluster_text(cluster)))
    elif toml:
        print_text(cluster_text(cluster).rstrip("\n"))
    else:
        console = make_console()
        _print_chip(console, cluster)
        for level in levels_of(cluster):
            print_line(console, _level_text(level))
            for speed in level.collectives:
                print_line(console, f"  {_speed_text(speed)}")
        console.print(_links_table(cluster))
        if cluster.kernels:
            console.print(_kernels_table(cluster))


def find_cluster(name: str) -> "Cluster":
    """Finds a preset by its name, or reads a file."""
    from jaxquard.cluster import load_cluster, preset_names
    from jaxquard.cluster.cluster_file import split_shape

    base, shape = split_shape(name)
    if os.path.isfile(name) or (shape and base in preset_names()):
        return load_cluster(name)
    return load_cluster(match_name(name, preset_names()))


def _level_text(level: "Level") -> str:
    """`node: 8, 360 GB/s each way of a port, 3.4 µs a step`."""
    of = "link" if level.is_torus else "port"
    closed = f", dims that are multiples of {level.wraps_at} close to rings" if level.wraps_at else ""
    dims, bandwidth = "x".join(map(str, level.dims)), bandwidth_text(level.bandwidth_bytes_per_s)
    return f"{level.name}: {dims}, {bandwidth} each way of a {of}, {microseconds_text(level.latency_s)} a step{closed}"


def _speed_text(speed: "CollectiveSpeed") -> str:
    """`all_reduce: 300 GB/s, 3.0 µs a step, measured (12 samples, median error 2.0%)`."""
    bandwidth, latency = bandwidth_text(speed.bandwidth_bytes_per_s), microseconds_text(speed.latency_s)
    measured = f", measured ({speed.num_samples} samples, median error {speed.median_error:.1%})"
    return f"{speed.kind.value}: {bandwidth}, {latency} a step{measured if speed.num_samples else ''}"


def _links_table(cluster: "Cluster") -> "Table":
    from jaxquard.cluster import Collective

    table = make_table("links", ("", "row to row", "column to column", "sync", "launch"))
    for kind in Collective:
        links = cluster.links(kind)
        table.add_row(
            kind.value,
            bandwidth_text(links.row_bandwidth_bytes_per_s),
            bandwidth_text(links.column_bandwidth_bytes_per_s),
            microseconds_text(links.sync_s),
            microseconds_text(links.launch_s),
        )
    return table


def _kernels_table(cluster: "Cluster") -> "Table":
    table = make_table(
        "measured kernels", ("", "arithmetic", "memory", "launch", "samples", "median error", "worst error")
    )
    for speed in cluster.kernels:
        table.add_row(
            f"{speed.kind.value}, {speed.dtype}",
            speed_text(speed.flops_per_s) if speed.flops_per_s else "",
            bandwidth_text(speed.bandwidth_bytes_per_s) if speed.bandwidth_bytes_per_s else "",
            microseconds_text(speed.launch_s),
            str(speed.num_samples),
            f"{speed.median_error:.1%}",
            f"{speed.worst_error:.1%}",
        )
    return table


def make_table(title: str, headings: tuple[str, ...]) -> "Table":
    """Makes a table whose first column is text and whose others are numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position == 0 else "right")
    return table


def _print_chip(console: "Console", cluster: "Cluster") -> None:
    compute = cluster.compute
    print_line(console, cluster_line(cluster), style="bold")
    print_line(console, _network_text(cluster.network))
    if cluster.is_paper_set:
        print_line(console, "The paper's own constants, for its reproduction: not to plan with.")
    if cluster.network.hides_one_collective:
        print_line(console, "The compiler hides one all-gather behind a product, and no reduce-scatter.")
    if compute.systolic_dim:
        dim = compute.systolic_dim
        print_line(console, f"A systolic array of {dim}x{dim}: thinner products leave a part of it idle.")
    if compute.output_exposed or compute.accumulate_slowdown:
        print_line(
            console,
            f"A product in slices: {compute.accumulate_slowdown:.1%} slower arithmetic, {compute.output_exposed:.0%} "
            f"of an output's or fp32 sum's traffic exposed, {microseconds_text(compute.launch_s)} a launch.",
        )


def cluster_line(cluster: "Cluster") -> str:
    """Describes a cluster in one line."""
    return (
        f"{cluster.name}: up to {cluster.num_chips} chips, {speed_text(cluster.compute.effective_flops_per_s)} of "
        f"{speed_text(cluster.compute.peak_flops_per_s)}, {cluster.memory.size_bytes / 1e9:.0f} GB at "
        f"{bandwidth_text(cluster.memory.bandwidth_bytes_per_s)}, {cluster.network.topology.value}"
    )


def _network_text(network: "Network") -> str:
    from jaxquard.cluster import Topology

    if network.topology is Topology.TORUS:
        ways = "both ways" if network.is_bidirectional else "one way"
        return f"Rows and columns have links of their own; permutes go {ways} round a ring."
    if not network.chips_per_node:
        return "Rows and columns share a chip's port."
    return (
        f"Rows and columns share a chip's port; nodes of {network.chips_per_node}, joined at "
        f"{bandwidth_text(network.between_nodes_bandwidth_bytes_per_s)} a chip."
    )


def speed_text(flops_per_s: float) -> str:
    """`737 TFLOP/s`."""
    return f"{flops_per_s / 1e12:.4g} TFLOP/s" if flops_per_s >= 1e12 else f"{flops_per_s / 1e9:.3g} GFLOP/s"


def bandwidth_text(bytes_per_s: float) -> str:
    """`360 GB/s`."""
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s < 1e12 else f"{bytes_per_s / 1e12:.3g} TB/s"


def microseconds_text(time_s: float) -> str:
    """`3.4 µs`."""
    return f"{time_s * 1e6:.1f} µs"
