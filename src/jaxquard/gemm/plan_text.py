"""A GeMM plan as JSON with a schema version, and back."""

import json
import os
from pathlib import Path
from typing import Any

from jaxquard.errors import GemmError

from .cost_algorithms import ALGORITHMS
from .problem import GemmPlan, LayerPlan, Stationary

SCHEMA = "jaxquard.gemm_plan"
VERSION = 1


def plan_text(plan: GemmPlan) -> str:
    """The JSON text of a plan; `parse_plan` gives the same plan back."""
    layers = [
        {
            "name": layer.name,
            "stationary": layer.stationary.value,
            "is_transposed": layer.is_transposed,
            "slices": list(layer.slices),
            "block": layer.block,
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
    if content.get("version") != VERSION:
        raise GemmError(
            f"{source} has version {content.get('version')!r} of the schema, this jaxquard reads {VERSION}. Tune again."
        )
    algorithm = _get(content, "algorithm", source)
    if algorithm not in ALGORITHMS:
        raise GemmError(f"{source} has the algorithm {algorithm!r}; the algorithms are {', '.join(ALGORITHMS)}.")
    rows, columns = _counts(content, "mesh_shape", 2, source)
    layers = _get(content, "layers", source)
    return GemmPlan(
        algorithm=algorithm,
        mesh_shape=(rows, columns),
        layers=tuple(_parse_layer(layer, f"{source}: layer {position}") for position, layer in enumerate(layers)),
    )


def save_plan(plan: GemmPlan, path: str | os.PathLike[str]) -> None:
    """Writes a plan as a JSON file that `load_plan` reads."""
    Path(path).write_text(plan_text(plan))


def load_plan(path: str | os.PathLike[str]) -> GemmPlan:
    """The plan of a JSON file."""
    return parse_plan(Path(path).read_text(), source=os.fspath(path))


def _parse_layer(content: Any, where: str) -> LayerPlan:
    kept = _get(content, "stationary", where)
    words = [kind.value for kind in Stationary]
    if kept not in words:
        raise GemmError(f"{where}: stationary should be one of {', '.join(words)}, found {kept!r}.")
    forward, data, weight = _counts(content, "slices", 3, where)
    (block,) = _counts({"block": [_get(content, "block", where)]}, "block", 1, where)
    is_transposed = _get(content, "is_transposed", where)
    if not isinstance(is_transposed, bool):
        raise GemmError(f"{where}: is_transposed should be true or false, found {is_transposed!r}.")
    return LayerPlan(
        name=str(_get(content, "name", where)),
        stationary=Stationary(kept),
        is_transposed=is_transposed,
        slices=(forward, data, weight),
        block=block,
    )


def _get(content: Any, key: str, where: str) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise GemmError(f"{where} lacks {key!r}. Save the plan again with `save_plan`.")
    return content[key]


def _counts(content: Any, key: str, length: int, where: str) -> tuple[int, ...]:
    values = _get(content, key, where)
    is_right = isinstance(values, list) and len(values) == length
    if not is_right or not all(isinstance(value, int) and value > 0 for value in values):
        raise GemmError(f"{where}: {key} should be {length} whole numbers above 0, found {values!r}.")
    return tuple(values)
