"""Arguments that no ring and no product can have are refused, in words."""

import numpy as np
import pytest

from jaxquard.cluster import (
    Axis,
    Collective,
    cluster_text,
    load_cluster,
    parse_cluster,
    ring_time,
    save_cluster,
    times_of,
)
from jaxquard.errors import ClusterError

_TPU = load_cluster("tpu-v4")
_RING = {
    "cluster": _TPU,
    "kind": Collective.ALL_GATHER,
    "axis": Axis.ROWS,
    "mesh_shape": (4, 2),
    "shard_bytes": 8.0,
    "num_steps": None,
}
_PRODUCT = {"m": 8, "k": 8, "n": 8, "num_slices": 2}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("cluster", "tpu-v4", r"cluster must be a Cluster, but is 'tpu-v4'. Load one: load_cluster\('tpu-v4'\)\."),
        ("kind", "all_gather", r"kind must be one of Collective.ALL_GATHER, .*, but is 'all_gather'\."),
        ("axis", "rows", r"axis must be one of Axis.ROWS, Axis.COLUMNS, but is 'rows'\."),
        ("mesh_shape", (0, 0), r"mesh_shape must be the rows and columns of chips, say \(4, 2\), but is \(0, 0\)\."),
        ("mesh_shape", (2, 2, 2), r"mesh_shape must be the rows and columns"),
        ("mesh_shape", "4x2", r"mesh_shape must be the rows and columns"),
        ("shard_bytes", -1, r"shard_bytes must be a number of 0 or more, but is -1\."),
        ("shard_bytes", float("nan"), r"shard_bytes must be a number of 0 or more, but is nan\."),
        ("num_steps", -3, r"num_steps must be a number of 0 or more, but is -3\."),
    ],
)
def test_a_ring_that_cannot_be(name, value, words):
    with pytest.raises(ClusterError, match=words):
        ring_time(**_RING | {name: value})


def test_numbers_of_numpy_are_numbers():
    numbers = {"mesh_shape": (np.int64(4), np.int32(2)), "shard_bytes": np.int64(8)}
    assert ring_time(**_RING | numbers) == ring_time(**_RING)


@pytest.mark.parametrize(("name", "value"), [("m", 0), ("k", -1), ("n", "8"), ("num_slices", 0)])
def test_a_product_that_cannot_be(name, value):
    with pytest.raises(ClusterError, match=rf"{name} must be a number above 0, but is {value!r}\."):
        times_of(_TPU).product(**_PRODUCT | {name: value})


def test_times_of_no_cluster():
    with pytest.raises(ClusterError, match=r"cluster must be a Cluster, but is 'tpu-v4'"):
        times_of("tpu-v4")


def test_texts_and_files(tmp_path):
    for text in (3, None, b"num_chips = 1"):
        with pytest.raises(ClusterError, match=r"the cluster text must be a text, but is .*load_cluster\(path\)"):
            parse_cluster(text)
    with pytest.raises(ClusterError, match="cluster must be a Cluster, but is 'x'"):
        save_cluster("x", tmp_path / "x.toml")
    assert not (tmp_path / "x.toml").exists()
    with pytest.raises(ClusterError, match="cluster must be a Cluster, but is 3"):
        cluster_text(3)
    with pytest.raises(ClusterError, match="path must be that of the file to write, but is None"):
        save_cluster(_TPU, None)
