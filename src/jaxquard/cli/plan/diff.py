"""`jaxquard plan diff`: two saved plans side by side."""

from pathlib import Path
from typing import Annotated

import typer

from jaxquard.cli.console import print_json, print_text
from jaxquard.cli.options import JsonOption


def diff_files(
    first: Annotated[Path, typer.Argument(metavar="FIRST.json", help="A plan that jaxquard plan --out has written.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND.json", help="Another.")],
    as_json: JsonOption = False,
) -> None:
    """Compares two plans: what differs between them, then times and memory by term, with ratios.

    Example: jaxquard plan diff a.json b.json
    """
    from jaxquard.planner.record.diff_plans import diff
    from jaxquard.planner.record.plan import load_plan

    names = (str(first), str(second)) if first.name == second.name else (first.name, second.name)
    found = diff(load_plan(first), load_plan(second), names=names)
    if as_json:
        print_json({"is_same": found.is_same, **found.as_json()})
    else:
        print_text(str(found))
