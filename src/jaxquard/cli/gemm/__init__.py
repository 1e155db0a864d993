"""`jaxquard gemm`: matrix products over chips, one subcommand a file.

In: layers, a cluster and a number of chips (tune); sizes and the devices at hand (bench); a TPU topology (overlap).
Out: the fastest meshes and slice counts, and a plan file; times beside XLA's; the transfers that the compiler hides.
"""

import typer

from jaxquard.cli.command import Command, Group
from jaxquard.cli.gemm.bench import bench
from jaxquard.cli.gemm.overlap import overlap
from jaxquard.cli.gemm.tune import tune

gemm_app = typer.Typer(cls=Group, help="2D tensor-parallel matrix products: tune them, and time them.")
for _command in (tune, bench, overlap):
    gemm_app.command(cls=Command)(_command)
