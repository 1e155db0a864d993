"""Sets of devices as parts of levels: boxes as `group_spans` has them, others as one ring."""

import itertools
import math

import pytest

from jaxquard.cluster import GroupCollective, Level, group_spans, group_time_s, spans_of_devices
from jaxquard.errors import ClusterError

NODE = Level(name="node", dims=(8,), bandwidth_bytes_per_s=100.0, latency_s=1e-3)
FABRIC = Level(name="fabric", dims=(16,), bandwidth_bytes_per_s=10.0, latency_s=1e-2)
TORUS = Level(name="slice", dims=(4, 8), is_torus=True, wraps_at=8, bandwidth_bytes_per_s=1.0, latency_s=0.0)


def sizes(levels, devices):
    return [(span.level.name, span.size, span.stride) for span in spans_of_devices(levels, devices)]


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        (range(8), [("node", 8, 1)]),
        (range(8, 16), [("node", 8, 1)]),
        ((0, 4), [("node", 2, 4)]),
        (range(0, 128, 8), [("fabric", 16, 1)]),
        (range(128), [("node", 8, 1), ("fabric", 16, 1)]),
        (range(0, 128, 4), [("node", 2, 4), ("fabric", 16, 1)]),
        ((5,), []),
        ((0, 1, 2, 8), [("fabric", 4, 1)]),
        ((0, 9), [("fabric", 2, 1)]),
        ((3, 1, 6), [("node", 3, 3)]),
    ],
)
def test_spans(devices, wanted):
    assert sizes((NODE, FABRIC), devices) == wanted


@pytest.mark.parametrize("levels", [(NODE, FABRIC), (TORUS,)])
@pytest.mark.parametrize("mesh_shape", [(16, 8), (32, 4), (2, 8, 8), (4, 2, 16), (2,) * 7])
def test_as_the_axes_of_a_mesh(levels, mesh_shape):
    """Every group along any axes has the time that the axes have; in a torus, along one axis at a time."""
    num_chips = math.prod(math.prod(level.dims) for level in levels)
    shape = mesh_shape if num_chips == 128 else (mesh_shape[0], 32 // mesh_shape[0])
    devices = list(itertools.product(*map(range, shape)))
    for num_axes in range(1, len(shape) + 1 if levels == (NODE, FABRIC) else 2):
        for axes in itertools.combinations(range(len(shape)), num_axes):
            held = set(range(len(shape))) - set(axes)
            group = [number for number, place in enumerate(devices) if all(place[axis] == 0 for axis in held)]
            for kind in GroupCollective:
                expected = group_time_s(kind, group_spans(levels, shape, set(axes)), 1e6)
                assert group_time_s(kind, spans_of_devices(levels, group), 1e6) == pytest.approx(expected)


def test_a_ring_is_a_whole_dim_that_closes():
    assert [span.is_ring for span in spans_of_devices((TORUS,), range(32))] == [True, False]
    assert [span.is_ring for span in spans_of_devices((TORUS,), range(4))] == [False]


def test_an_irregular_set_is_never_faster_than_a_box_around_it():
    """4 chips in one host and 1 in another against the same 5 chips, each in its own host."""
    time_s = group_time_s(GroupCollective.ALL_GATHER, spans_of_devices((NODE, FABRIC), (0, 1, 2, 3, 8)), 1000.0)
    apart_s = group_time_s(GroupCollective.ALL_GATHER, spans_of_devices((NODE, FABRIC), range(0, 40, 8)), 1000.0)
    assert time_s == pytest.approx(apart_s)


@pytest.mark.parametrize(
    ("devices", "message"),
    [((), "must have a device, but is empty"), ((0, 128), "has 128, but the cluster's chips are 0 to 127")],
)
def test_refusals(devices, message):
    with pytest.raises(ClusterError, match=message):
        spans_of_devices((NODE, FABRIC), devices)
