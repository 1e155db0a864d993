"""`jaxquard plan explain`: what a saved plan has chosen, what the next best would cost, and which term decides."""

from pathlib import Path
from typing import Annotated

import typer

from jaxquard.cli.console import print_json, print_text
from jaxquard.cli.options import JsonOption


def explain_file(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan that jaxquard plan --out has written.")],
    part: Annotated[
        str | None,
        typer.Argument(
            metavar="PART",
            help="schedule, stages, mesh, microbatches, recompute, storage, time, memory or baselines; 'stage 2', "
            "'layer 3' or 'block 7'; a path of parameters, as 'layers.*.mlp'; or a line, as model.py:41.",
            show_default="the main decisions",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explains a plan, or a part of it: what was chosen, what the next best would cost, and which term decides.

    Example: jaxquard plan explain plan.json 'layer 3'
    """
    from jaxquard.ir.codec import to_data
    from jaxquard.planner.record.plan import load_plan

    explained = load_plan(plan).explain(part or "")
    if as_json:
        print_json(to_data(explained))
    else:
        print_text(str(explained))
