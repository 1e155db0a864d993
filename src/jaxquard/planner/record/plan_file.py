"""A plan as a JSON file with a schema number, written in one step and read strictly.

A file may come from a stranger: whatever is wrong with it is one `PlanError` of one line. `check_plan` holds what the
types of the fields do not say; a plan that it refuses is neither written nor read.
"""

import json
import os
from pathlib import Path
from typing import Any

from jaxquard.errors import PlanError
from jaxquard.ir.codec import DataError, from_data, to_data
from jaxquard.ir.parse_json import parse_json
from jaxquard.planner.record.check_plan import check_plan, check_texts
from jaxquard.planner.record.plan_data import PlanData

KIND = "jaxquard plan"
SCHEMA = 1
# A plan of 10,000 blocks takes about 2 MB.
_MOST_BYTES = 64 * 2**20


def plan_as_json(plan: PlanData) -> dict[str, Any]:
    """Returns the content of a plan's file, as plain data for JSON; `parse_plan_json` gives the same plan back."""
    return {"kind": KIND, "schema": SCHEMA, **to_data(plan)}


def parse_plan_json(content: Any, *, source: str) -> PlanData:
    """Reads a plan from the content of its file.

    Args:
        source: names the content in errors.

    Raises:
        PlanError: if it is no plan of this schema, or contradicts itself.
    """
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise PlanError(f"{source} is no plan: {_found(content)}. Give a file that `jaxquard plan --out` wrote.")
    schema = content.get("schema")
    if isinstance(schema, bool) or schema != SCHEMA:
        raise PlanError(f"{source} has schema {schema!r:.80} of a plan, and this jaxquard reads {SCHEMA}. Plan again.")
    entries = {key: value for key, value in content.items() if key not in ("kind", "schema")}
    try:
        check_texts(entries, where="plan")
        plan = from_data(PlanData, entries, where="plan")
        check_plan(plan)
    except DataError as error:
        raise PlanError(f"{source} is no whole plan: {' '.join(str(error).split())}. Plan again.") from None
    return plan


def read_plan_file(path: str | os.PathLike[str]) -> PlanData:
    """Reads a plan's file.

    Raises:
        PlanError: if the file cannot be read, or is no plan.
    """
    name = _path_text(path)
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise DataError(f"it has more than {_MOST_BYTES // 2**20} MiB")
        content = parse_json(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(
            f"{name} cannot be read as a plan: {reason}. Give a file that `jaxquard plan --out` wrote."
        ) from None
    return parse_plan_json(content, source=name)


def write_plan_file(plan: PlanData, path: str | os.PathLike[str]) -> None:
    """Writes a plan's file in one step: a reader sees the old file or the new one, never a part.

    Raises:
        PlanError: if the plan contradicts itself, or the file cannot be written.
    """
    name = _path_text(path)
    try:
        check_plan(plan)
    except DataError as error:
        raise PlanError(f"the plan contradicts itself and is not written to {name}: {error}.") from None
    text = json.dumps(plan_as_json(plan), indent=1, allow_nan=False) + "\n"
    try:
        _replace_file(Path(os.path.realpath(path)), text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"cannot write the plan to {name} ({reason}). Give a file in a folder that exists.") from None


def _replace_file(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():  # A pipe or a device cannot be replaced, and a folder is refused here.
        path.write_text(text)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _path_text(path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        raise PlanError(f"path must be that of a plan's file, but is {path!r:.80}.")
    return os.fspath(path)


def _found(content: Any) -> str:
    if not isinstance(content, dict):
        return f"it has a {type(content).__name__}, and a plan is a table"
    return f"its kind is {content.get('kind')!r:.80}, and that of a plan is {KIND!r}"
