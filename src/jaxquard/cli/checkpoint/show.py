"""`jaxquard checkpoint show`: the leaves of a checkpoint and their pieces, from its manifest."""

from pathlib import Path
from typing import Annotated

import typer

from jaxquard.cli.checkpoint.content import leaf_content, report_line, summary
from jaxquard.cli.console import make_console, print_json, print_text
from jaxquard.cli.options import JsonOption


def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A checkpoint, as given to jq.save.")],
    as_json: JsonOption = False,
) -> None:
    """Shows the leaves of a checkpoint, their types and sizes, and the processes that wrote them.

    Example: jaxquard checkpoint show runs/last
    """
    from jaxquard.runtime.checkpoint.files.disk import human
    from jaxquard.runtime.checkpoint.verify import describe_checkpoint

    report = describe_checkpoint(path)
    if as_json:
        print_json({"path": str(path), **summary(report), "leaves": [leaf_content(leaf) for leaf in report.leaves]})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("leaf", "type", "written by"):
        table.add_column(heading, overflow="fold")
    for heading in ("pieces", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    for leaf in report.leaves:
        writers = ", ".join(sorted({piece.folder for piece in leaf.pieces}))
        # No markup: brackets in a path are its own.
        cells = (leaf.path, leaf.type_text, writers, str(len(leaf.pieces)), human(leaf.size_bytes))
        table.add_row(*(cell.replace("[", r"\[") for cell in cells))
    print_text(report_line(report, verdict=""))
    make_console().print(table)
