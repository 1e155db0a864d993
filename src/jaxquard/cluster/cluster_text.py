"""A cluster as TOML, and back.

    name = "my cluster"
    num_chips = 64

    [compute]
    peak_flops_per_s = 272e12
    effective_flops_per_s = 249e12

    [memory] ...  [network] ...  [all_gather] ...  [reduce_scatter] ...  [permute] ...

The tables are the dataclasses of `cluster.py`, the keys their fields; a field with a default may be left out.
"""

import dataclasses
import enum
import json
import math
import tomllib
import typing
from typing import Any

from jaxquard.cluster.check_arguments import check_cluster
from jaxquard.cluster.cluster import Cluster, Compute, Links, Memory, Network
from jaxquard.errors import ClusterError

_TABLES = {
    "compute": Compute,
    "memory": Memory,
    "network": Network,
    "all_gather": Links,
    "reduce_scatter": Links,
    "permute": Links,
}
_POSITIVE = ("num_chips", "peak_flops_per_s", "effective_flops_per_s", "size_bytes", "tile")


def parse_cluster(text: str, *, source: str = "the cluster text") -> Cluster:
    """Parses a cluster from TOML text; `source` names the text in errors.

    Raises:
        ClusterError: it is no text, no TOML, or lacks something.

    Example:
        >>> text = jq.cluster.cluster_text(jq.cluster.load_cluster("tpu-v4"))
        >>> jq.cluster.parse_cluster(text.replace('"tpu-v4"', '"mine"')).name
        'mine'
    """
    if not isinstance(text, str):
        raise ClusterError(f"{source} must be a text, but is {text!r:.80}. To read a file, use load_cluster(path).")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{source} is not TOML: {error}.") from None
    top = {key: value for key, value in tables.items() if key not in _TABLES}
    values: dict[str, Any] = _read_fields(Cluster, top, source=source, skip=tuple(_TABLES))
    for name, kind in _TABLES.items():
        if not isinstance(tables.get(name), dict):
            raise ClusterError(f"{source} needs a table [{name}] with the keys {_names(kind)}.")
        values[name] = kind(**_read_fields(kind, tables[name], source=f"{source}: [{name}]"))
    cluster = Cluster(**values)
    if cluster.compute.effective_flops_per_s > cluster.compute.peak_flops_per_s:
        raise ClusterError(
            f"{source}: [compute] effective_flops_per_s should be at most peak_flops_per_s "
            f"({cluster.compute.peak_flops_per_s:g}), found {cluster.compute.effective_flops_per_s:g}."
        )
    nodes = cluster.network
    if 0 < nodes.chips_per_node < cluster.num_chips and nodes.between_nodes_bandwidth_bytes_per_s == 0:
        raise ClusterError(
            f"{source}: [network] has nodes of {nodes.chips_per_node} of {cluster.num_chips} chips, so that "
            "between_nodes_bandwidth_bytes_per_s should be above 0, found 0. Or is it one node: chips_per_node = 0?"
        )
    return cluster


def cluster_text(cluster: Cluster) -> str:
    """The TOML text of a cluster; `parse_cluster` gives the same cluster back.

    Raises:
        ClusterError: it is no cluster.

    Example:
        >>> text = jq.cluster.cluster_text(jq.cluster.load_cluster("tpu-v4"))
        >>> text.splitlines()[0]
        'name = "tpu-v4"'
    """
    check_cluster(cluster)
    lines = [f"name = {_value_text(cluster.name)}", f"num_chips = {cluster.num_chips}"]
    for name in _TABLES:
        table = getattr(cluster, name)
        lines += ["", f"[{name}]"]
        lines += [f"{field.name} = {_value_text(getattr(table, field.name))}" for field in dataclasses.fields(table)]
    return "\n".join(lines) + "\n"


def _names(kind: type) -> str:
    return ", ".join(field.name for field in dataclasses.fields(kind))


def _read_fields(kind: type, table: dict[str, Any], *, source: str, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    types = typing.get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.name not in skip]
    known = [field.name for field in fields]
    for key in table:
        if key not in known:
            raise ClusterError(f"{source} has the unknown key {key}; the keys are {', '.join(known)}.")
    values = {}
    for field in fields:
        if field.name in table:
            values[field.name] = _read_value(types[field.name], table[field.name], where=f"{source} {field.name}")
        elif field.default is dataclasses.MISSING:
            raise ClusterError(f"{source} lacks the key {field.name}; the keys are {', '.join(known)}.")
    return values


def _read_value(kind: type, value: Any, *, where: str) -> Any:
    key = where.rpartition(" ")[2]
    if issubclass(kind, enum.Enum):
        words = [member.value for member in kind]
        if value not in words:
            raise ClusterError(f"{where} should be one of {', '.join(words)}, found {value!r}.")
        return kind(value)
    if kind is str or kind is bool:
        if not isinstance(value, kind):
            raise ClusterError(f"{where} should be {'a text' if kind is str else 'true or false'}, found {value!r}.")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClusterError(f"{where} should be a number, found {value!r}.")
    if kind is int and (not math.isfinite(value) or value != int(value)):
        raise ClusterError(f"{where} should be a whole number, found {value!r}.")
    is_positive = key in _POSITIVE or (key.endswith("bandwidth_bytes_per_s") and "between_nodes" not in key)
    if value < 0 or (is_positive and value == 0) or not math.isfinite(value):
        raise ClusterError(f"{where} should be {'above 0' if is_positive else 'at least 0'}, found {value!r}.")
    return kind(value)


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return f'"{value.value}"'
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
