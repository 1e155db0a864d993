"""`jaxquard gemm bench`: the algorithms on the devices at hand, against what XLA makes of a plain product."""

import dataclasses
import json
from typing import Annotated

import jax.numpy as jnp
import typer
from rich.table import Table

from jaxquard.calibrate import Comparison, compare_algorithms
from jaxquard.cli.console import make_console, print_line
from jaxquard.cli.devices import start_devices
from jaxquard.cli.progress import ProgressBars
from jaxquard.errors import GemmError
from jaxquard.gemm import ALGORITHMS

_SIZE_ON_CPU, _SIZE = 512, 8192


def bench(
    m: Annotated[
        int | None, typer.Option(min=1, help="Rows of the left matrix.", show_default="8192; 512 on CPU")
    ] = None,
    k: Annotated[int | None, typer.Option(min=1, help="The dim that is summed over.", show_default="as above")] = None,
    n: Annotated[int | None, typer.Option(min=1, help="Columns of the right matrix.", show_default="as above")] = None,
    algorithms: Annotated[str, typer.Option(metavar="NAME,...", help="Which to run.")] = ",".join(ALGORITHMS),
    slices: Annotated[str, typer.Option(metavar="S,...", help="Slice counts of MeshSlice.")] = "1,2,4",
    dataflow: Annotated[str, typer.Option(help="What stays put: os, ls or rs.")] = "os",
    rounds: Annotated[int, typer.Option(min=1, help="How often each is timed.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use 8 virtual CPU devices even if there is a GPU.")] = False,
) -> None:
    """Times a product in bf16 by every algorithm on every mesh of the devices.

    Example: [bold]jaxquard gemm bench --slices 1,2,4,8[/bold]
    """
    counts = _parse_slices(slices)
    devices = start_devices(cpu=cpu)
    size = _SIZE_ON_CPU if devices[0].platform == "cpu" else _SIZE
    sizes = (m or size, k or size, n or size)
    with ProgressBars() as bars:
        found = compare_algorithms(
            m=sizes[0],
            k=sizes[1],
            n=sizes[2],
            algorithms=[name.strip() for name in algorithms.split(",")],
            slices=counts,
            dataflow=dataflow,
            dtype=jnp.bfloat16,
            devices=devices,
            rounds=rounds,
            on_progress=bars.add("meshes"),
        )
    console = make_console()
    if as_json:
        console.print(json.dumps([dataclasses.asdict(one) for one in found], indent=2), markup=False, soft_wrap=True)
        return
    device = f"{len(devices)} x {devices[0].device_kind}"
    print_line(console, f"{sizes} in bf16 on {device}; plain is lhs @ rhs under jit on the same mesh", style="bold")
    console.print(_table(found))
    for one in found:
        if one.why_not:
            mesh = "x".join(map(str, one.mesh_shape))
            print_line(console, f"left out: {one.algorithm} on {mesh}, S={one.num_slices}: {one.why_not}")


def _parse_slices(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise GemmError(f"--slices should be whole numbers above 0, such as 1,2,4, but is {text!r}.")
    return tuple(int(word) for word in words)


def _table(found: tuple[Comparison, ...]) -> Table:
    table = Table()
    for heading in ("algorithm", "mesh", "S", "of plain", "least time", "worst error"):
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
