"""`jaxquard gemm bench`: the algorithms on the devices at hand, against XLA's own plain product."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from jaxquard.cli.console import make_console, print_json, print_line
from jaxquard.cli.gemm.names import ALGORITHMS, DATAFLOWS
from jaxquard.cli.options import CpuOption, JsonOption, choose_name, parse_numbers

if TYPE_CHECKING:
    from rich.table import Table

    from jaxquard.calibrate import Comparison

_SIZE_ON_CPU, _SIZE = 512, 8192


def bench(
    m: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Rows of the left matrix.", show_default="8192; 512 on CPU"),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Columns of the left matrix, which are summed over.",
            show_default="8192; 512 on CPU",
        ),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", metavar="N", min=1, help="Columns of the right matrix.", show_default="8192; 512 on CPU"),
    ] = None,
    algorithms: Annotated[str, typer.Option(metavar="NAME,...", help="Which to run.")] = ",".join(ALGORITHMS),
    slices: Annotated[str, typer.Option(metavar="S,...", help="Slice counts of MeshSlice.")] = "1,2,4",
    dataflow: Annotated[
        str, typer.Option(metavar="os|ls|rs", help="The stationary matrix: output, left or right.")
    ] = "os",
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each is timed.")] = 5,
    as_json: JsonOption = False,
    cpu: CpuOption = False,
) -> None:
    """Times a product in bf16 by every algorithm on every mesh of the devices.

    Example: jaxquard gemm bench --slices 1,2,4,8
    """
    counts = parse_numbers(slices, option="--slices", example="1,2,4", between=",")
    names = [choose_name(name, ALGORITHMS, kind="GeMM algorithm") for name in algorithms.split(",")]
    stationary = choose_name(dataflow, DATAFLOWS, kind="dataflow")
    import jax.numpy as jnp

    from jaxquard.calibrate import compare_algorithms
    from jaxquard.cli.devices import start_devices
    from jaxquard.progress import ProgressBars

    devices = start_devices(cpu=cpu)
    size = _SIZE_ON_CPU if devices[0].platform == "cpu" else _SIZE
    sizes = (m or size, k or size, n or size)
    with ProgressBars() as bars:
        found = compare_algorithms(
            m=sizes[0],
            k=sizes[1],
            n=sizes[2],
            algorithms=names,
            slices=counts,
            dataflow=stationary,
            dtype=jnp.bfloat16,
            devices=devices,
            rounds=rounds,
            on_progress=bars.add("meshes"),
        )
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
    else:
        _print(found, sizes=sizes, device=f"{len(devices)} x {devices[0].device_kind}")


def _print(found: "tuple[Comparison, ...]", *, sizes: tuple[int, int, int], device: str) -> None:
    console = make_console()
    print_line(console, f"{sizes} in bf16 on {device}; plain is lhs @ rhs under jit on the same mesh", style="bold")
    console.print(_table(found))
    for one in found:
        if one.why_not:
            mesh = "x".join(map(str, one.mesh_shape))
            print_line(console, f"left out: {one.algorithm} on {mesh}, S={one.num_slices}: {one.why_not}")


def _table(found: "tuple[Comparison, ...]") -> "Table":
    from rich.table import Table

    table = Table()
    for heading in ("algorithm", "mesh", "S", "of plain", "fastest", "worst error"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    for one in found:
        if not one.why_not:
            table.add_row(
                one.algorithm,
                "x".join(map(str, one.mesh_shape)),
                str(one.num_slices),
                f"{one.ratio:.2f}",
                f"{one.time_s * 1e3:.3f} ms",
                f"{one.worst_error:.1e}",
            )
    return table
