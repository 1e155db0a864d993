"""`jaxquard checkpoint verify`: reads checkpoints and compares every byte with its digest."""

from pathlib import Path
from typing import Annotated

import typer

from jaxquard.cli.checkpoint.content import report_line, summary
from jaxquard.cli.console import print_json, print_text
from jaxquard.cli.exit_codes import print_error
from jaxquard.cli.options import JsonOption
from jaxquard.errors import CheckpointError


def verify_all(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Checkpoints, as given to jq.save.")],
    as_json: JsonOption = False,
) -> None:
    """Reads checkpoints, and compares every byte with the digests that they were saved with.

    Example: jaxquard checkpoint verify runs/last
    """
    from jaxquard.progress import ProgressBars
    from jaxquard.runtime.checkpoint.verify import verify

    answers, errors = [], []
    for path in map(Path, paths):
        try:
            with ProgressBars() as bars:
                report = verify(path, progress=bars.add(path.name, name="reading"))
            answers.append({"path": str(path), "is_whole": True, **summary(report)})
            if not as_json:
                print_text(report_line(report))
        except CheckpointError as error:
            answers.append({"path": str(path), "is_whole": False, "error": str(error)})
            errors.append(error)
    if as_json:
        print_json(answers)
    for error in errors[:-1]:
        print_error(str(error))
    if errors:
        raise errors[-1]
