"""`jaxquard gemm overlap`: the transfers of a product that the TPU's compiler hides behind compute."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxquard.cli.console import make_console, print_json, print_line
from jaxquard.cli.gemm.names import ALGORITHMS, DATAFLOWS
from jaxquard.cli.options import JsonOption, choose_name, parse_numbers

if TYPE_CHECKING:
    from rich.table import Table

    from jaxquard.gemm.overlap.report import OverlapReport


def overlap(
    topology: Annotated[
        str, typer.Option(metavar="NAME", help="Generation and chips along each axis, say v5e:4x8.")
    ] = "v5e:4x8",
    mesh: Annotated[
        str | None, typer.Option(metavar="RxC", help="Rows and columns of chips.", show_default="near square")
    ] = None,
    slices: Annotated[int, typer.Option(metavar="S", min=1, help="MeshSlice's slices.")] = 4,
    algorithms: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Some of {', '.join(ALGORITHMS)}.")
    ] = "meshslice,wang,collective",
    sizes: Annotated[
        str | None, typer.Option(metavar="MxKxN", help="Sizes of the product.", show_default="a few thousand each")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="MeshSlice with whole partial products, not split for overlap on TPUs.")
    ] = False,
    default_options: Annotated[
        bool, typer.Option("--default-options", help="Leave the compiler's options as they are by default.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Counts the transfers that the TPU's compiler hides behind products; needs no TPU.

    Example: jaxquard gemm overlap --topology v5e:4x8 --mesh 8x4 --slices 4
    """
    mesh_shape: Any = mesh and parse_numbers(mesh, option="--mesh", example="8x4", count=2)
    product_sizes: Any = sizes and parse_numbers(sizes, option="--sizes", example="16384x6144x6144", count=3)
    names = [choose_name(name, ALGORITHMS, kind="GeMM algorithm") for name in algorithms.split(",")]
    from jaxquard.gemm.overlap.compile import TPU_COMPILER_OPTIONS, topology_mesh
    from jaxquard.gemm.overlap.report import overlap_report
    from jaxquard.gemm.problem import AlgorithmOptions
    from jaxquard.progress import ProgressBars

    compiler_options = {} if default_options else TPU_COMPILER_OPTIONS
    with ProgressBars() as bars:
        move, done = bars.add("products", name="starting the compiler"), iter(range(len(names) * len(DATAFLOWS)))
        report = overlap_report(
            topology_mesh(topology, mesh_shape),
            algorithms=names,
            sizes=product_sizes,
            options=AlgorithmOptions(slices=slices, split_for_overlap=not plain),
            compiler_options=compiler_options,
            on_progress=lambda name, dataflow: move(
                next(done), len(names) * len(DATAFLOWS), f"compiling {name}, {dataflow.value}"
            ),
        )
    if as_json:
        print_json(_content(report))
        return
    console = make_console()
    print_line(console, f"transfers that hide behind products, of those that could, on {topology}", style="bold")
    console.print(_table(report))
    print_line(
        console,
        f"compiled with {', '.join(f'{key}={value}' for key, value in compiler_options.items()) or 'no options'}",
    )


def _table(report: "OverlapReport") -> "Table":
    from rich.table import Table

    table = Table("algorithm", *DATAFLOWS, box=None)
    for name, by_dataflow in report.items():
        table.add_row(name, *(str(by_dataflow[dataflow]) for dataflow in DATAFLOWS))
    return table


def _content(report: "OverlapReport") -> dict[str, dict[str, dict[str, int]]]:
    return {
        name: {
            dataflow: {"hideable": overlap.hideable, "hidden": overlap.hidden}
            for dataflow, overlap in by_dataflow.items()
        }
        for name, by_dataflow in report.items()
    }
