"""`jaxquard checkpoint`: checkpoints on disk, one subcommand a file. No command needs the devices that saved them.

In: paths that `jq.save` has written, or a folder of such. Out: whether each is whole (verify), its leaves and their
pieces (show), a line on each checkpoint of a folder (list).
"""

import typer

from jaxquard.cli.checkpoint.list_steps import list_steps
from jaxquard.cli.checkpoint.show import show
from jaxquard.cli.checkpoint.verify import verify_all
from jaxquard.cli.command import Command, Group

checkpoint_app = typer.Typer(
    cls=Group, help="Checkpoints on disk: verify that they are whole, show what one holds, list those of a folder."
)
checkpoint_app.command("verify", cls=Command)(verify_all)
checkpoint_app.command(cls=Command)(show)
checkpoint_app.command("list", cls=Command)(list_steps)
