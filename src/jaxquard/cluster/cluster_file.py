"""Clusters by name (a preset of the package) or as TOML files, read and written.

    name = "my cluster"
    num_chips = 64

    [compute]
    peak_flops_per_s = 272e12
    effective_flops_per_s = 249e12

    [memory] ...  [network] ...  [all_gather] ...  [reduce_scatter] ...  [permute] ...

The tables are the dataclasses of `cluster.py`, the keys their fields; a field with a default may be left out. What then
describes the chip is taken from its kind (`defaults.py`), with a warning that names it.
"""

import json
import math
import os
import re
import tomllib
import warnings
from importlib import resources
from pathlib import Path
from typing import Any

from jaxquard.cluster.cluster import Cluster, check_cluster
from jaxquard.cluster.defaults import fill_defaults
from jaxquard.cluster.levels import with_shape
from jaxquard.errors import ClusterError, ClusterWarning
from jaxquard.ir.codec import DataError, from_data, to_data


def preset_names() -> tuple[str, ...]:
    """Returns the names of the clusters that come with the package.

    Example:
        >>> jq.cluster.preset_names()[:5]
        ('a100', 'a100-pcie', 'b200', 'cpu', 'h100')
    """
    folder = resources.files("jaxquard.cluster") / "presets"
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def load_cluster(name_or_path: str | os.PathLike[str] | Cluster) -> Cluster:
    """Loads a preset by name, or a cluster from a TOML file; a `Cluster` is returned as it is.

    A preset may have a shape: `h100-8x16` is 16 hosts of 8 chips, `v5e-4x4` a slice of 4 by 4, `v5e-4x4x2` two of them.

    Raises:
        ClusterError: the name is unknown, the file is missing, its text is no cluster, or it cannot have that shape.

    Example:
        >>> jq.cluster.load_cluster("h100").name
        'h100'
    """
    if isinstance(name_or_path, Cluster):
        return name_or_path
    if not isinstance(name_or_path, str | os.PathLike):
        raise ClusterError(
            f"a cluster is the name of a preset, the path of a TOML file, or a Cluster, but found {name_or_path!r}."
        )
    name = os.fspath(name_or_path)
    base, shape = split_shape(name)
    if base in preset_names():
        file = resources.files("jaxquard.cluster") / "presets" / f"{base}.toml"
        cluster = parse_cluster(file.read_text(), source=f"{base}.toml")
        return with_shape(cluster, shape) if shape else cluster
    path = Path(name)
    if path.is_file():
        try:
            return parse_cluster(path.read_text(), source=name)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ClusterError(f"cannot read a cluster from {name} ({reason}).") from None
    raise ClusterError(
        f"{name!r} is neither a cluster of the package nor a file. "
        f"Use one of {', '.join(preset_names())}, or the path of a TOML file."
    )


def split_shape(name: str) -> tuple[str, tuple[int, ...]]:
    """Splits `h100-8x16` into the preset and its shape, which is empty for a preset alone.

    Example:
        >>> from jaxquard.cluster.cluster_file import split_shape
        >>> split_shape("h100-8x16"), split_shape("tpu-v4")
        (('h100', (8, 16)), ('tpu-v4', ()))
    """
    found = re.fullmatch(r"(.+)-(\d{1,6}(?:x\d{1,6})*)", name)
    if found is None or name in preset_names():
        return name, ()
    return found[1], tuple(map(int, found[2].split("x")))


def save_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Writes a cluster as a TOML file that `load_cluster` reads.

    Raises:
        ClusterError: it is no cluster, or the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jq.cluster.save_cluster(jq.cluster.load_cluster("h100"), f"{folder}/mine.toml")
        ...     jq.cluster.load_cluster(f"{folder}/mine.toml").num_chips
        1016
    """
    text = cluster_text(cluster)
    if not isinstance(path, str | os.PathLike):
        raise ClusterError(f"path must be that of the file to write, but is {path!r}.")
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise ClusterError(
            f"cannot write the cluster to {os.fspath(path)} ({error.strerror}). Give a file in a folder that exists."
        ) from None


def _parse_toml(text: str) -> dict[str, Any]:
    """Parses TOML that a stranger may have written: deep nesting and endless numbers are no TOML either."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from None
    except ValueError:
        raise tomllib.TOMLDecodeError("it has a number with too many digits") from None


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
        content, filled = fill_defaults(_parse_toml(text))
        cluster = from_data(Cluster, content, where="cluster")
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{source} is not TOML: {error}.") from None
    except DataError as error:
        raise ClusterError(f"{source}: {str(error).removeprefix('cluster.')}.") from None
    if cluster.compute.effective_flops_per_s > cluster.compute.peak_flops_per_s:
        raise ClusterError(
            f"{source}: compute.effective_flops_per_s should be at most peak_flops_per_s "
            f"({cluster.compute.peak_flops_per_s:g}), found {cluster.compute.effective_flops_per_s:g}."
        )
    if filled:
        warnings.warn(
            f"{source} does not say all; taken are {filled}. `jaxquard cluster calibrate` measures them.",
            ClusterWarning,
            stacklevel=2,
        )
    _check_levels(cluster, source)
    nodes = cluster.network
    if 0 < nodes.chips_per_node < cluster.num_chips and nodes.between_nodes_bandwidth_bytes_per_s == 0:
        raise ClusterError(
            f"{source}: network has nodes of {nodes.chips_per_node} of {cluster.num_chips} chips, so that "
            "between_nodes_bandwidth_bytes_per_s should be above 0, found 0. Or is it one node: chips_per_node = 0?"
        )
    return cluster


def _check_levels(cluster: Cluster, source: str) -> None:
    """Raises a ClusterError unless the levels have as many chips as the cluster, and a switch has one dim."""
    size = math.prod(level.size for level in cluster.levels)
    if cluster.levels and size < cluster.num_chips:
        raise ClusterError(
            f"{source}: the levels have {size} chips in all, but num_chips is {cluster.num_chips}. Make them agree."
        )
    for level in cluster.levels:
        if not level.dims or (len(level.dims) > 1 and not level.is_torus):
            raise ClusterError(
                f"{source}: the level {level.name!r} should have one dim, or is_torus = true, found {list(level.dims)}."
            )


def cluster_text(cluster: Cluster) -> str:
    """Returns the TOML text of a cluster; `parse_cluster` gives the same cluster back.

    Raises:
        ClusterError: it is no cluster.

    Example:
        >>> text = jq.cluster.cluster_text(jq.cluster.load_cluster("tpu-v4"))
        >>> text.splitlines()[0]
        'name = "tpu-v4"'
    """
    check_cluster(cluster)
    content = to_data(cluster)
    levels, kernels = content.pop("levels"), content.pop("kernels")
    lines = [f"{name} = {_value_text(value)}" for name, value in content.items() if not isinstance(value, dict)]
    for name, table in content.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_value_text(entry)}" for key, entry in table.items())]
    for level in levels:
        collectives = level.pop("collectives")
        lines += _entry_lines("levels", level)
        for speed in collectives:
            lines += _entry_lines("levels.collectives", speed)
    for speed in kernels:
        lines += _entry_lines("kernels", speed)
    return "\n".join(lines) + "\n"


def _entry_lines(name: str, entry: dict[str, Any]) -> list[str]:
    return ["", f"[[{name}]]", *(f"{key} = {_value_text(value)}" for key, value in entry.items())]


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
