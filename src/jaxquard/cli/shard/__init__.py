"""`jaxquard shard` and its subcommands, one a file."""

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
