"""`jaxquard cluster`: descriptions of hardware, one subcommand a file.

In: a preset, a cluster file (show), or the devices at hand (calibrate). Out: tables of chips and links, as text, TOML
or JSON; a cluster file whose figures were measured.
"""

import typer

from jaxquard.cli.cluster.calibrate import calibrate
from jaxquard.cli.cluster.show import show
from jaxquard.cli.command import Command, Group

cluster_app = typer.Typer(cls=Group, help="Descriptions of hardware: show one, or measure the devices at hand.")
for _command in (show, calibrate):
    cluster_app.command(cls=Command)(_command)
