"""`jaxquard shard` and its subcommands, one a file."""

import typer

from jaxquard.cli.shard_compare import compare
from jaxquard.cli.shard_search import search
from jaxquard.cli.shard_show import show

shard_app = typer.Typer(
    no_args_is_help=True,
    help="Shardings of a training step: look at its blocks, search by measured prices, compare with the usual ones.",
)
shard_app.command()(search)
shard_app.command()(show)
shard_app.command()(compare)
