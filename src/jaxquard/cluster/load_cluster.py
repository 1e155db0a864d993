"""Clusters by name (a preset of the package) or by file."""

import os
from importlib import resources
from pathlib import Path

from jaxquard.cluster.cluster import Cluster
from jaxquard.cluster.cluster_text import cluster_text, parse_cluster
from jaxquard.errors import ClusterError


def preset_names() -> tuple[str, ...]:
    """The clusters that come with the package.

    Example:
        >>> jq.cluster.preset_names()
        ('a100', 'h100', 'h200', 'tpu-v4', 'tpu-v4-fitted', 'tpu-v4-main', 'v5e', 'v5p', 'v6e')
    """
    folder = resources.files("jaxquard.cluster") / "presets"
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def load_cluster(name_or_path: str | os.PathLike[str] | Cluster) -> Cluster:
    """Loads a preset by name, or a cluster from a TOML file; a `Cluster` is returned as it is.

    Raises:
        ClusterError: the name is unknown, the file is missing, or its text is no cluster.

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
    if name in preset_names():
        file = resources.files("jaxquard.cluster") / "presets" / f"{name}.toml"
        return parse_cluster(file.read_text(), source=f"{name}.toml")
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
