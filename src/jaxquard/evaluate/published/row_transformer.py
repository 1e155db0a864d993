"""The transformer of a published row: what the row says, over what is known by its name, over what fits its size."""

import re
from typing import Any

from jaxquard.errors import PublishedDataError
from jaxquard.evaluate.published.row_values import RowValues
from jaxquard.pricing.model.known.find_transformer import guess_sizes, known_sizes
from jaxquard.pricing.model.transformer import Transformer

_COLUMNS = {"num_layers": "layers", "hidden": "hidden", "num_heads": "heads", "vocab": "vocab"}

_MOST_LAYERS = 10_000


def row_transformer(values: RowValues) -> Transformer:
    """Returns the transformer of a row.

    Raises:
        PublishedDataError: if neither the row nor its name gives the sizes.
    """
    name, seq = values.text("model"), values.size("seq")
    counts = {field: values.degree(column) for field, column in _COLUMNS.items()}
    stated: dict[str, Any] = {field: count for field, count in counts.items() if count}
    if stated.get("num_layers", 1) > _MOST_LAYERS:
        raise PublishedDataError(f"layers is {stated['num_layers']}, but must be at most {_MOST_LAYERS}.")
    known = known_sizes(name)
    if known and any(stated.get(field, known[field]) != known[field] for field in ("num_layers", "hidden")):
        known = None
    billions = values.number("params_b") or _billions(name)
    if known is None and billions:
        known = _guess(values, name, billions * 1e9, stated)
    if known is None and {"num_layers", "hidden"} <= set(stated):
        known = {"num_heads": max(1, stated["hidden"] // 128), "vocab": 51200}
    if known is None:
        raise PublishedDataError(f"the sizes of {name!r} are not in the row, and no published model has that name.")
    sizes: dict[str, Any] = {**known, **stated, "seq": seq}
    return Transformer(**sizes)


def _billions(name: str) -> float | None:
    found = re.search(r"(\d+(?:\.\d+)?)\s*([bmt])\b", name.lower())
    return float(found[1]) * {"b": 1.0, "m": 1e-3, "t": 1e3}[found[2]] if found else None


def _guess(values: RowValues, name: str, num_parameters: float, stated: dict[str, Any]) -> dict[str, Any]:
    """Takes sizes that fit the number of parameters, and heads that divide among the tensor group."""
    sizes = guess_sizes(name, num_parameters)
    tensor = values.whole("tp") or 1
    if {"num_layers", "hidden"} <= set(stated):
        sizes = _fit_width(sizes, stated, num_parameters)
    sizes["num_heads"] = max(1, round(sizes["num_heads"] / tensor)) * tensor
    return sizes


def _fit_width(sizes: dict[str, Any], stated: dict[str, Any], num_parameters: float) -> dict[str, Any]:
    """Takes the width of a gated MLP for which layers and hidden as stated make up the number of parameters."""
    layers, hidden = stated["num_layers"], stated["hidden"]
    fitted = {**sizes, "num_heads": stated.get("num_heads", max(1, hidden // 128))}
    fitted.pop("ffn", None)
    if sizes.get("is_gated"):
        embeddings = stated.get("vocab", sizes["vocab"]) * hidden * (1 if sizes.get("is_tied", True) else 2)
        width = ((num_parameters - embeddings) / layers - 4 * hidden**2) / (3 * hidden)
        fitted["ffn"] = max(256, round(width / 256) * 256)
    return fitted
