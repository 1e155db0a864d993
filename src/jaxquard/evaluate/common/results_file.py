"""Files of results: JSON with the name and version of a schema, written and read by the papers' evaluations."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxquard.errors import JaxquardError
from jaxquard.ir.codec import DataError, from_data


def results_text(schema: str, version: int, content: dict[str, Any]) -> str:
    """Returns plain data as JSON behind its schema."""
    return json.dumps({"schema": schema, "version": version, **content}, indent=1, allow_nan=False) + "\n"


def read_results(path: Path, kind: Any, *, schema: str, version: int, command: str) -> Any:
    """Reads a dataclass, all of its fields, from a file that `results_text` wrote.

    Args:
        command: the command whose results they are, for errors.

    Raises:
        JaxquardError: if the file is not there, or is something else.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise JaxquardError(f"cannot read {path} ({error.strerror}). Give the file of an earlier run.") from None
    except (ValueError, RecursionError):
        raise JaxquardError(f"{path} is no JSON. Give the file that an earlier run wrote.") from None
    found = content.get("schema") if isinstance(content, dict) else None
    if found != schema or content.get("version") != version:
        raise JaxquardError(
            f"{path} is no results of `{command}`: expected the schema {schema}, version {version}, but found {found}. "
            "Give the file that an earlier run wrote, or another name for a new one."
        )
    data = {key: value for key, value in content.items() if key not in ("schema", "version")}
    missing = [field.name for field in dataclasses.fields(kind) if field.name not in data]
    try:
        if missing:
            raise DataError(f"the file lacks the key {missing[0]}")
        return from_data(kind, data, where="the file")
    except DataError as error:
        raise JaxquardError(f"{path} was changed or truncated: {error}. Remove it, and run again.") from None
