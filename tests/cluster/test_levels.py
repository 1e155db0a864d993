"""Levels of a cluster, shapes by name, and the part of them that the axes of a mesh take."""

import itertools
import math

import pytest

from jaxquard.cluster import (
    GroupCollective,
    Level,
    cluster_text,
    group_spans,
    group_time_s,
    levels_of,
    load_cluster,
    parse_cluster,
    preset_names,
    with_shape,
)
from jaxquard.errors import ClusterError

NODE = Level(name="node", dims=(8,), bandwidth_bytes_per_s=100.0, latency_s=0.0)
FABRIC = Level(name="fabric", dims=(16,), bandwidth_bytes_per_s=10.0, latency_s=0.0)
TORUS = Level(name="slice", dims=(4, 8), is_torus=True, wraps_at=8, bandwidth_bytes_per_s=1.0, latency_s=0.0)


def sizes(levels, mesh_shape, axes):
    return [(span.level.name, span.size) for span in group_spans(levels, mesh_shape, axes)]


def test_axes_that_share_a_dim_share_its_links():
    """Two axes of one group over one dim of a torus are one span, with a ring if they take all of it."""
    (whole,) = group_spans([TORUS], (4, 2, 4), {1, 2})
    assert (whole.size, whole.stride, whole.is_ring) == (8, 1, True)
    assert group_spans([TORUS], (4, 8), {1}) == (whole,)
    first, second = group_spans([TORUS], (4, 2, 2, 2), {1, 3})
    assert (first.size, first.stride, second.size, second.stride) == (2, 1, 2, 4)
    assert first.dim == second.dim
    gathered_s = [group_time_s(GroupCollective.ALL_GATHER, spans, 4.0) for spans in ((first, second), (first,))]
    assert gathered_s == [3.0, 2.0], "one link carries both"


class TestSpans:
    @pytest.mark.parametrize(
        ("mesh_shape", "axes", "wanted"),
        [
            ((16, 8), {1}, [("node", 8)]),
            ((16, 8), {0}, [("fabric", 16)]),
            ((16, 8), {0, 1}, [("node", 8), ("fabric", 16)]),
            ((32, 4), {1}, [("node", 4)]),
            ((32, 4), {0}, [("node", 2), ("fabric", 16)]),
            ((2, 8, 8), {1}, [("fabric", 8)]),
            ((2, 8, 8), {0}, [("fabric", 2)]),
            ((4, 2, 16), {2}, [("node", 8), ("fabric", 2)]),
            ((4, 2, 16), {1}, [("fabric", 2)]),
            ((128,), {0}, [("node", 8), ("fabric", 16)]),
            ((1, 8), {0}, []),
        ],
    )
    def test_axes_take_levels_from_the_innermost(self, mesh_shape, axes, wanted):
        assert sizes((NODE, FABRIC), mesh_shape, axes) == wanted

    @pytest.mark.parametrize("mesh_shape", [(16, 8), (32, 4), (2, 8, 8), (4, 2, 16), (128,), (2, 2, 2, 2, 2, 2, 2)])
    def test_groups_have_the_devices_that_they_should(self, mesh_shape):
        """Counted device by device: the members of a group that share a node with its first."""
        devices = list(itertools.product(*map(range, mesh_shape)))
        number = {place: index for index, place in enumerate(devices)}
        for axes in ({axis} for axis in range(len(mesh_shape))):
            group = [place for place in devices if all(place[axis] == 0 for axis in set(range(len(mesh_shape))) - axes)]
            in_node = sum(number[place] // 8 == 0 for place in group)
            nodes = len({number[place] // 8 for place in group})
            found = dict(sizes((NODE, FABRIC), mesh_shape, axes))
            assert (found.get("node", 1), found.get("fabric", 1)) == (in_node, nodes)

    def test_a_torus_has_rings_only_where_a_whole_dim_closes(self):
        whole = group_spans((TORUS,), (4, 8), {0, 1})
        assert [(span.size, span.is_ring) for span in whole] == [(8, True), (4, False)]
        half = group_spans((TORUS,), (8, 4), {1})
        assert [(span.size, span.is_ring) for span in half] == [(4, False)]
        far = group_spans((TORUS,), (8, 4), {0})
        assert [(span.size, span.stride) for span in far] == [(2, 4), (4, 1)]


class TestShapes:
    @pytest.mark.parametrize(
        ("name", "num_chips", "dims"),
        [
            ("h100-8x16", 128, [(8,), (16,)]),
            ("h200-8", 8, [(8,)]),
            ("a100-pcie-4", 4, [(4,)]),
            ("v5e-4x4", 16, [(4, 4)]),
            ("v5e-4x8x2", 64, [(4, 8), (2,)]),
            ("v5p-4x4x8", 128, [(4, 4, 8)]),
            ("tpu-v4-4x4x4", 64, [(4, 4, 4)]),
            ("h100-8x2048", 16384, [(8,), (2048,)]),
        ],
    )
    def test_a_preset_with_a_shape(self, name, num_chips, dims):
        cluster = load_cluster(name)
        assert (cluster.name, cluster.num_chips) == (name, num_chips)
        assert [level.dims for level in levels_of(cluster)] == dims

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("h100-16", "16 chips in a node, but there are at most 8. Say h100-8 or h100-8x2"),
            ("v5e-32x8", "32x8 chips in a slice, but there are at most 16x16"),
            ("v5e-4", "has 1 sizes, but v5e has 2 of a slice"),
            ("h100-8x2x2", "has 3 sizes"),
            ("h100-0x2", "h100-0x2 has a size of 0, but each is 1 or more. Say h100-8 or h100-8x2"),
            ("h1000-8", "neither a cluster of the package nor a file"),
        ],
    )
    def test_a_shape_that_cannot_be(self, name, message):
        with pytest.raises(ClusterError, match=message):
            load_cluster(name)

    def test_a_shape_is_written_and_read(self):
        cluster = load_cluster("v5e-4x8x2")
        assert parse_cluster(cluster_text(cluster)) == cluster


class TestPresets:
    @pytest.mark.parametrize("name", preset_names())
    def test_levels_have_all_chips(self, name):
        cluster = load_cluster(name)
        levels = levels_of(cluster)
        assert math.prod(level.size for level in levels) >= cluster.num_chips
        bandwidths = [level.bandwidth_bytes_per_s for level in levels]
        assert bandwidths == sorted(set(bandwidths), reverse=True)

    def test_a_file_of_before_has_the_levels_of_its_nodes(self):
        text = cluster_text(load_cluster("h100"))
        assert "[[levels]]" not in text
        node, between = levels_of(parse_cluster(text))
        assert (node.dims, node.bandwidth_bytes_per_s) == ((8,), 360e9)
        assert (between.dims, between.bandwidth_bytes_per_s) == ((127,), 50e9)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (("dims = [16, 16]", "dims = [2, 2]"), "the levels have 256 chips in all, but num_chips is 300"),
            (("is_torus = true\n", ""), "'slice' should have one dim, or is_torus = true"),
            (("dims = [64]", "dims = [64, 1]"), "'between slices' should have one dim"),
            (("latency_s = 5e-06", "latency_s = -1"), "latency_s should be"),
        ],
    )
    def test_levels_that_cannot_be(self, change, message):
        text = cluster_text(load_cluster("v5e")).replace("num_chips = 256", "num_chips = 300")
        assert change[0] in text
        with pytest.raises(ClusterError, match=message):
            parse_cluster(text.replace(*change))


def test_a_shape_may_be_given_as_numbers():
    assert with_shape(load_cluster("h100"), (8, 4)) == load_cluster("h100-8x4")
