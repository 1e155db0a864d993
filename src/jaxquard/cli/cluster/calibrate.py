"""`jaxquard cluster calibrate`: measures the devices at hand and writes a cluster file."""

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxquard.cli.cluster.show import bandwidth_text, find_cluster, make_table, microseconds_text, speed_text
from jaxquard.cli.console import check_writable, make_console, print_json, write_file
from jaxquard.cli.exit_codes import print_message
from jaxquard.cli.options import CpuOption, JsonOption

if TYPE_CHECKING:
    from rich.table import Table

    from jaxquard.calibrate import Calibration
    from jaxquard.cluster import CollectiveSpeed, KernelSpeed


def calibrate(
    out: Annotated[Path, typer.Option(metavar="FILE.toml", help="Where to write the cluster.")] = Path("cluster.toml"),
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.toml", help="Gives what is not measured.", show_default="the preset of the devices' kind"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller samples.")] = False,
    as_json: JsonOption = False,
    cpu: CpuOption = False,
) -> None:
    """Measures collectives and kernels on the devices at hand, and writes a cluster file with residuals of the fits.

    Example: jaxquard cluster calibrate --out my.toml
    """
    start = None if base is None else find_cluster(base)
    check_writable(out)
    from jaxquard.calibrate import calibrate as measure
    from jaxquard.calibrate import calibration_text
    from jaxquard.cli.devices import start_devices
    from jaxquard.cli.interrupt import ends_with
    from jaxquard.pricing.measure.machine.steady_cpu import make_cpu_steady
    from jaxquard.progress import ProgressBars

    make_cpu_steady()  # As for the programs that a search measures.
    devices = start_devices(cpu=cpu)
    with ends_with("Nothing is kept."), ProgressBars() as bars:
        calibration = measure(
            start,
            devices=devices,
            is_quick=quick,
            on_links=bars.add("links"),
            on_collectives=bars.add("collectives"),
            on_products=bars.add("products"),
            on_kernels=bars.add("kernels"),
        )
    for note in calibration.notes:
        print_message(f"note: {note}", style="yellow" if "is poor" in note else "")
    write_file(out, calibration_text(calibration))
    if as_json:
        print_json(_content(calibration))
    else:
        make_console().print(_fits_table(calibration))


def _content(calibration: "Calibration") -> dict[str, Any]:
    from jaxquard.cluster import cluster_text

    products = calibration.product_fit
    return {
        "device": calibration.device,
        "cluster": tomllib.loads(cluster_text(calibration.cluster)),
        "links": [
            {
                "collective": fit.kind.value,
                "bandwidth_bytes_per_s": fit.bandwidth_bytes_per_s,
                "sync_s": fit.sync_s,
                "launch_s": fit.launch_s,
                "num_samples": fit.num_samples,
                "median_error": fit.median_error,
                "worst_error": fit.worst_error,
            }
            for fit in calibration.link_fits
        ],
        "products": None
        if products is None
        else {
            "effective_flops_per_s": products.compute.effective_flops_per_s,
            "launch_s": products.compute.launch_s,
            "num_samples": products.num_samples,
            "median_error": products.median_error,
            "worst_error": products.worst_error,
        },
        "collectives": [{**asdict(speed), "kind": speed.kind.value} for speed in calibration.collective_speeds],
        "kernels": [{**asdict(speed), "kind": speed.kind.value} for speed in calibration.kernel_speeds],
        "notes": list(calibration.notes),
    }


def _fits_table(calibration: "Calibration") -> "Table":
    table = make_table(
        f"{calibration.cluster.name}, on {calibration.device}",
        ("", "bandwidth or speed", "sync", "launch", "samples", "median error", "worst error"),
    )
    for fit in calibration.link_fits:
        table.add_row(
            fit.kind.value,
            bandwidth_text(fit.bandwidth_bytes_per_s),
            microseconds_text(fit.sync_s),
            microseconds_text(fit.launch_s),
            str(fit.num_samples),
            f"{fit.median_error:.1%}",
            f"{fit.worst_error:.1%}",
        )
    products = calibration.product_fit
    if products is not None:
        table.add_row(
            "products",
            speed_text(products.compute.effective_flops_per_s),
            "",
            microseconds_text(products.compute.launch_s),
            str(products.num_samples),
            f"{products.median_error:.1%}",
            f"{products.worst_error:.1%}",
        )
    for speed in calibration.collective_speeds:
        table.add_row(
            f"{speed.kind.value}, groups",
            bandwidth_text(speed.bandwidth_bytes_per_s),
            microseconds_text(speed.latency_s),
            microseconds_text(speed.launch_s),
            *_residuals(speed),
        )
    for speed in calibration.kernel_speeds:
        fast = speed_text(speed.flops_per_s) if speed.flops_per_s else bandwidth_text(speed.bandwidth_bytes_per_s)
        table.add_row(
            f"{speed.kind.value}, {speed.dtype}", fast, "", microseconds_text(speed.launch_s), *_residuals(speed)
        )
    return table


def _residuals(speed: "CollectiveSpeed | KernelSpeed") -> tuple[str, str, str]:
    return str(speed.num_samples), f"{speed.median_error:.1%}", f"{speed.worst_error:.1%}"
