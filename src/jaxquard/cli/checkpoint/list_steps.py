"""`jaxquard checkpoint list`: a line on each checkpoint of a folder."""

import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxquard.cli.checkpoint.content import summary
from jaxquard.cli.console import print_json, print_text
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.options import JsonOption
from jaxquard.errors import CheckpointError


def list_steps(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of checkpoints, as jq.Checkpoints has.")],
    as_json: JsonOption = False,
) -> None:
    """Lists the checkpoints of a folder. It reads their manifests only: `verify` reads their bytes.

    Example: jaxquard checkpoint list runs
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder. Give one that has checkpoints in it.")
    from jaxquard.runtime.checkpoint.files.folders import list_checkpoints

    answers = [_describe(path) for path in list_checkpoints(folder.absolute())]
    if as_json:
        print_json(answers)
    elif not answers:
        print_text(f"{folder} has no checkpoints")
    else:
        width = max(len(answer["name"]) for answer in answers)
        print_text("\n".join(f"{answer['name']:<{width}}  {_line(answer)}" for answer in answers))


def _describe(path: Path) -> dict[str, Any]:
    from jaxquard.runtime.checkpoint.files.folders import find_checkpoint
    from jaxquard.runtime.checkpoint.files.manifest import MANIFEST_NAME
    from jaxquard.runtime.checkpoint.verify import describe_checkpoint

    try:
        written_s = (find_checkpoint(path) / MANIFEST_NAME).stat().st_mtime
        written = datetime.datetime.fromtimestamp(written_s, datetime.UTC).isoformat(timespec="seconds")
        return {"name": path.name, "written": written, **summary(describe_checkpoint(path))}
    except (CheckpointError, OSError) as error:
        return {"name": path.name, "error": str(error)}


def _line(answer: dict[str, Any]) -> str:
    from jaxquard.runtime.checkpoint.files.disk import human

    if "error" in answer:
        return answer["error"]
    return f"{answer['written']}  {human(answer['size_bytes'])}  digest {answer['digest'] or 'none'}"
