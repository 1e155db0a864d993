"""`jaxquard gemm` and its subcommands, one a file."""

import typer

from jaxquard.cli.command import Command, Group
from jaxquard.cli.gemm.bench import bench
from jaxquard.cli.gemm.overlap import overlap
from jaxquard.cli.gemm.tune import tune

gemm_app = typer.Typer(cls=Group, help="2D tensor-parallel matrix products: tune them, and time them.")
for _command in (tune, bench, overlap):
    gemm_app.command(cls=Command)(_command)
