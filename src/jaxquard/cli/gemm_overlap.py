"""`jaxquard gemm overlap`: which transfers of a product the TPU's compiler hides behind compute."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jaxquard.cli.console import make_console, print_line
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.registry import ALGORITHMS, find_algorithm
from jaxquard.gemm.overlap.compile import TPU_COMPILER_OPTIONS, topology_mesh
from jaxquard.gemm.overlap.report import OverlapReport, overlap_report
from jaxquard.gemm.problem import Dataflow


def overlap(
    topology: Annotated[str, typer.Option(help="Generation and chips along each axis, say v5e:4x8.")] = "v5e:4x8",
    mesh: Annotated[
        str | None, typer.Option(metavar="RxC", help="Rows and columns of chips.", show_default="near square")
    ] = None,
    slices: Annotated[int, typer.Option(min=1, help="MeshSlice's slices.")] = 4,
    algorithm: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Some of {', '.join(ALGORITHMS)}.")
    ] = "meshslice,wang,collective",
    sizes: Annotated[
        str | None, typer.Option(metavar="MxKxN", help="Of the product.", show_default="a few thousand each")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="MeshSlice with whole partial products, not in parts for TPUs.")
    ] = False,
    default_options: Annotated[
        bool, typer.Option("--default-options", help="Pass the compiler no options of ours.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Counts the transfers that the TPU's compiler hides behind products; needs no TPU.

    Example: [bold]jaxquard gemm overlap --topology v5e:4x8 --mesh 8x4 --slices 4[/bold]
    """
    mesh_shape = None if mesh is None else _numbers(mesh, 2, "--mesh", "8x4")
    product_sizes = None if sizes is None else _numbers(sizes, 3, "--sizes", "16384x6144x6144")
    names = [find_algorithm(name.strip()).name for name in algorithm.split(",")]
    progress = Console(stderr=True, highlight=False)
    with progress.status("starting the compiler") as status:
        report = overlap_report(
            topology_mesh(topology, None if mesh_shape is None else (mesh_shape[0], mesh_shape[1])),
            algorithms=names,
            slices=slices,
            sizes=None if product_sizes is None else (product_sizes[0], product_sizes[1], product_sizes[2]),
            in_parts=not plain,
            compiler_options={} if default_options else TPU_COMPILER_OPTIONS,
            on_progress=lambda name, dataflow: status.update(f"compiling {name}, {dataflow.value}"),
        )
    console = make_console()
    if as_json:
        console.print(json.dumps(_content(report), indent=2), markup=False, soft_wrap=True)
        return
    print_line(console, f"transfers that hide behind products, of those that could, on {topology}", style="bold")
    console.print(_table(report))
    options = (
        "no options" if default_options else ", ".join(f"{key}={value}" for key, value in TPU_COMPILER_OPTIONS.items())
    )
    print_line(console, f"compiled with {options}")


def _numbers(text: str, count: int, option: str, example: str) -> tuple[int, ...]:
    words = text.split("x")
    if len(words) != count or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise GemmError(f"{option} should be {count} numbers such as {example}, but is {text!r}.")
    return tuple(map(int, words))


def _table(report: OverlapReport) -> Table:
    table = Table("algorithm", *(dataflow.value for dataflow in Dataflow), box=None)
    for name, by_dataflow in report.items():
        table.add_row(name, *(str(by_dataflow[dataflow.value]) for dataflow in Dataflow))
    return table


def _content(report: OverlapReport) -> dict[str, dict[str, dict[str, int]]]:
    return {
        name: {
            dataflow: {"hideable": overlap.hideable, "hidden": overlap.hidden}
            for dataflow, overlap in by_dataflow.items()
        }
        for name, by_dataflow in report.items()
    }
