"""`jaxquard gemm` and its subcommands, one a file."""

import typer

from jaxquard.cli.gemm_bench import bench
from jaxquard.cli.gemm_overlap import overlap
from jaxquard.cli.gemm_tune import tune

gemm_app = typer.Typer(no_args_is_help=True, help="2D tensor-parallel matrix products: tune them, and time them.")
gemm_app.command()(tune)
gemm_app.command()(bench)
gemm_app.command()(overlap)
