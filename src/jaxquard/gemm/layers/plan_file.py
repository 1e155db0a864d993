"""A GeMM plan as JSON with a schema version, and back.

The fields of `GemmPlan` and `LayerPlan` are the keys. Version 1 had nothing of a layer after `block`: its plans run as
the defaults say. Version 2 called `split_for_overlap` "in_parts" and `bidirectional` "both_ways". Up to version 3 all
layers had the algorithm of the plan.
"""

import json
import os
from pathlib import Path
from typing import Any

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.registry import ALGORITHMS
from jaxquard.gemm.problem import MIXED, GemmPlan
from jaxquard.ir.codec import DataError, from_data, to_data
from jaxquard.ir.parse_json import parse_json

SCHEMA = "jaxquard.gemm_plan"
VERSION = 4
_READABLE = (1, 2, 3, VERSION)


def plan_text(plan: GemmPlan) -> str:
    """Returns the JSON text of a plan; `parse_plan` gives the same plan back."""
    return json.dumps({"schema": SCHEMA, "version": VERSION} | to_data(plan), indent=2) + "\n"


def parse_plan(text: str, *, source: str = "the plan text") -> GemmPlan:
    """Reads the plan that a JSON text describes; `source` names the text in errors.

    Raises:
        GemmError: the text is no JSON, of another schema or version, or lacks something.
    """
    try:
        content = parse_json(text)
    except DataError as error:
        raise GemmError(f"{source} is not JSON: {error}.") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise GemmError(f"{source} is no GeMM plan: expected the schema {SCHEMA!r}. Save one with `save_plan`.")
    version = content.get("version")
    if isinstance(version, bool) or version not in _READABLE:
        raise GemmError(
            f"{source} has version {version!r:.80} of the schema, this jaxquard reads "
            f"{', '.join(map(str, _READABLE))}. Tune again."
        )
    fields = {key: value for key, value in content.items() if key not in ("schema", "version")}
    try:
        plan = from_data(GemmPlan, fields, where="plan", is_complete=version == VERSION)
    except DataError as error:
        raise GemmError(f"{source}: {error}. Save the plan again with `save_plan`.") from None
    for name in _algorithms(plan):
        if name not in ALGORITHMS:
            raise GemmError(f"{source} has the algorithm {name!r}; the algorithms are {', '.join(ALGORITHMS)}.")
    return plan


def _algorithms(plan: GemmPlan) -> list[str]:
    """Returns the names of all algorithms of a plan; a mixed plan has only those of its layers."""
    names = [plan.algorithm_of(layer) for layer in plan.layers]
    return names if names and plan.algorithm == MIXED else [plan.algorithm, *names]


def save_plan(plan: GemmPlan, path: str | os.PathLike[str]) -> None:
    """Writes a plan as a JSON file that `load_plan` reads.

    Raises:
        GemmError: if the argument is not a plan, or the file cannot be written.

    Example:
        >>> import tempfile
        >>> layer = jq.gemm.LayerPlan(name="FF1", stationary=jq.gemm.Stationary("y"), slices=(4, 4, 4))
        >>> plan = jq.gemm.GemmPlan(algorithm="meshslice", mesh_shape=(4, 2), layers=(layer,))
        >>> with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        ...     jq.gemm.save_plan(plan, file.name)
        ...     "meshslice" in file.read()
        True
    """
    if not isinstance(plan, GemmPlan):
        raise GemmError(f"plan must be a GemmPlan, such as the `plan` of what `autotune` returns; found {plan!r:.80}.")
    _check_path(path)
    try:
        Path(path).write_text(plan_text(plan))
    except OSError as error:
        raise GemmError(
            f"cannot write the plan to {os.fspath(path)} ({error.strerror}). Give a file in a folder that exists."
        ) from None


def load_plan(path: str | os.PathLike[str]) -> GemmPlan:
    """Reads a plan from a JSON file.

    Raises:
        GemmError: if the file cannot be read, or is not a plan.

    Example:
        >>> import tempfile
        >>> tuned = jq.gemm.autotune(jq.gemm.transformer_block(1024, num_rows=4096), cluster="tpu-v4", num_chips=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jq.gemm.save_plan(tuned.best.plan, f"{folder}/block.json")
        ...     loaded = jq.gemm.load_plan(f"{folder}/block.json")
        >>> loaded.mesh_shape
        (4, 4)
    """
    _check_path(path)
    name = os.fspath(path)
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise GemmError(
            f"cannot read a plan from {name} ({reason}). Give a file that `save_plan` or `gemm tune --out` wrote."
        ) from None
    return parse_plan(text, source=name)


def _check_path(path: Any) -> None:
    if not isinstance(path, str | os.PathLike):
        raise GemmError(f"path must be that of a plan's file, but is {path!r}.")
