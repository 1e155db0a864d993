"""A GeMM plan as JSON with a schema version, and back.

Version 1 had nothing of a layer after `block`: what its plans did without saying so is what `_UNSAID` says.
"""

import json
import os
from pathlib import Path
from typing import Any

from jaxquard.cluster import Axis
from jaxquard.errors import GemmError
from jaxquard.gemm.cost.algorithms import ALGORITHMS
from jaxquard.gemm.problem import GemmPlan, LayerPlan, Stationary

SCHEMA = "jaxquard.gemm_plan"
VERSION = 2
_READABLE = (1, VERSION)
_UNSAID = {"in_parts": False, "rings": [None, None, None], "both_ways": False, "num_packets": [1, 1, 1]}


def plan_text(plan: GemmPlan) -> str:
    """The JSON text of a plan; `parse_plan` gives the same plan back."""
    layers = [
        {
            "name": layer.name,
            "stationary": layer.stationary.value,
            "is_transposed": layer.is_transposed,
            "slices": list(layer.slices),
            "block": layer.block,
            "in_parts": layer.in_parts,
            "rings": [axis and axis.value for axis in layer.rings],
            "both_ways": layer.both_ways,
            "num_packets": list(layer.num_packets),
        }
        for layer in plan.layers
    ]
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "algorithm": plan.algorithm,
        "mesh_shape": list(plan.mesh_shape),
        "layers": layers,
    }
    return json.dumps(content, indent=2) + "\n"


def parse_plan(text: str, *, source: str = "the plan text") -> GemmPlan:
    """The plan that a JSON text describes; `source` names the text in errors.

    Raises:
        GemmError: the text is no JSON, of another schema or version, or lacks something.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise GemmError(f"{source} is not JSON: {error}.") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise GemmError(f"{source} is no GeMM plan: expected the schema {SCHEMA!r}. Save one with `save_plan`.")
    version = content.get("version")
    if isinstance(version, bool) or version not in _READABLE:
        raise GemmError(
            f"{source} has version {version!r} of the schema, this jaxquard reads "
            f"{' and '.join(map(str, _READABLE))}. Tune again."
        )
    algorithm = _get(content, "algorithm", source)
    if algorithm not in ALGORITHMS:
        raise GemmError(f"{source} has the algorithm {algorithm!r}; the algorithms are {', '.join(ALGORITHMS)}.")
    rows, columns = _counts(content, "mesh_shape", 2, source)
    layers = _get(content, "layers", source)
    if not isinstance(layers, list):
        raise GemmError(f"{source}: layers should be a list, found {layers!r}. Save the plan again with `save_plan`.")
    return GemmPlan(
        algorithm=algorithm,
        mesh_shape=(rows, columns),
        layers=tuple(
            _parse_layer(
                {**_UNSAID, **layer} if version == 1 and isinstance(layer, dict) else layer,
                f"{source}: layer {position}",
            )
            for position, layer in enumerate(layers)
        ),
    )


def save_plan(plan: GemmPlan, path: str | os.PathLike[str]) -> None:
    """Writes a plan as a JSON file that `load_plan` reads.

    Raises:
        GemmError: if the argument is not a plan, or the file cannot be written.

    Example:
        >>> import tempfile
        >>> layer = jq.gemm.LayerPlan(name="FF1", stationary=jq.gemm.Stationary("y"), slices=(4, 4, 4))
        >>> plan = jq.gemm.GemmPlan(algorithm="meshslice", mesh_shape=(4, 2), layers=(layer,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jq.gemm.save_plan(plan, f"{folder}/plan.json")
        ...     jq.gemm.load_plan(f"{folder}/plan.json") == plan
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
        >>> layer = jq.gemm.LayerPlan(name="FF1", stationary=jq.gemm.Stationary("y"), slices=(4, 4, 4))
        >>> plan = jq.gemm.GemmPlan(algorithm="meshslice", mesh_shape=(4, 2), layers=(layer,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jq.gemm.save_plan(plan, f"{folder}/plan.json")
        ...     jq.gemm.load_plan(f"{folder}/plan.json") == plan
        True
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


def _parse_layer(content: Any, where: str) -> LayerPlan:
    kept = _get(content, "stationary", where)
    words = [kind.value for kind in Stationary]
    if kept not in words:
        raise GemmError(f"{where}: stationary should be one of {', '.join(words)}, found {kept!r}.")
    forward, data, weight = _counts(content, "slices", 3, where)
    (block,) = _counts({"block": [_get(content, "block", where)]}, "block", 1, where)
    first_ring, second_ring, third_ring = _rings(content, where)
    first_packets, second_packets, third_packets = _counts(content, "num_packets", 3, where)
    return LayerPlan(
        name=str(_get(content, "name", where)),
        stationary=Stationary(kept),
        is_transposed=_truth(content, "is_transposed", where),
        slices=(forward, data, weight),
        block=block,
        in_parts=_truth(content, "in_parts", where),
        rings=(first_ring, second_ring, third_ring),
        both_ways=_truth(content, "both_ways", where),
        num_packets=(first_packets, second_packets, third_packets),
    )


def _get(content: Any, key: str, where: str) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise GemmError(f"{where} lacks {key!r}. Save the plan again with `save_plan`.")
    return content[key]


def _truth(content: Any, key: str, where: str) -> bool:
    value = _get(content, key, where)
    if not isinstance(value, bool):
        raise GemmError(f"{where}: {key} should be true or false, found {value!r}.")
    return value


def _rings(content: Any, where: str) -> list[Axis | None]:
    words = _get(content, "rings", where)
    known = [None, *(axis.value for axis in Axis)]
    if not isinstance(words, list) or len(words) != 3 or not all(word in known for word in words):
        raise GemmError(f"{where}: rings should be 3 of rows, columns and null, found {words!r}.")
    return [None if word is None else Axis(word) for word in words]


def _counts(content: Any, key: str, length: int, where: str) -> tuple[int, ...]:
    values = _get(content, key, where)
    is_right = isinstance(values, list) and len(values) == length
    if not is_right or not all(isinstance(value, int) and value > 0 for value in values):
        raise GemmError(f"{where}: {key} should be {length} whole numbers above 0, found {values!r}.")
    return tuple(values)
