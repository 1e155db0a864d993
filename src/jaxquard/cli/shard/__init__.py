"""`jaxquard shard`: shardings of a training step, one subcommand a file.

In: a model, or a function that returns `(train_step, args)`, and a mesh. Out: the step's blocks and segments (show);
the fastest plan, its file and its chart (search); plan and baselines as they run and as predicted (compare).
"""

import typer

from jaxquard.cli.command import Command, Group
from jaxquard.cli.shard.compare import compare
from jaxquard.cli.shard.search import search
from jaxquard.cli.shard.show import show

shard_app = typer.Typer(
    cls=Group,
    help="Shardings of a training step: show its blocks, search by measured prices, compare with the baselines.",
)
for _command in (search, show, compare):
    shard_app.command(cls=Command)(_command)
