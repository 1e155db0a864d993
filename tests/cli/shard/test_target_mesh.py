"""Meshes over the chips of a cluster that is not here."""

import pytest

from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.shard.target_mesh import target_mesh
from jaxquard.cluster import load_cluster


@pytest.mark.parametrize(
    ("cluster", "sizes", "by_level", "wanted"),
    [
        ("h100-8x4", None, False, {"devices": 32}),
        ("h100-8x4", None, True, {"outer": 4, "inner": 8}),
        ("h100-8", None, True, {"devices": 8}),
        ("h100-8x4", (2, 4), False, {"outer": 2, "inner": 4}),
        ("v5e-4x8", None, True, {"outer": 4, "inner": 8}),
        ("v5e-4x8", None, False, {"devices": 32}),
        # A preset of all chips that there are: one host of them.
        ("h100", None, False, {"devices": 8}),
    ],
)
def test_meshes(cluster, sizes, by_level, wanted):
    assert dict(target_mesh(load_cluster(cluster), sizes, by_level=by_level).shape) == wanted


def test_a_mesh_that_is_too_large():
    with pytest.raises(UsageError, match="--mesh 4x4 has 16 devices, but h100-8 has 8 chips"):
        target_mesh(load_cluster("h100-8"), (4, 4))
