"""Speeds of collectives from times; `group_time_s` with them gives the times back."""

import dataclasses

import pytest

from jaxquard.cluster import (
    CollectiveSample,
    CollectiveSpeed,
    GroupCollective,
    Level,
    LevelSpan,
    cluster_text,
    fit_collectives,
    group_time_s,
    levels_of,
    load_cluster,
    parse_cluster,
)
from jaxquard.errors import ClusterError

LEVEL = Level(name="node", dims=(8,), bandwidth_bytes_per_s=1e9, latency_s=1e-3, launch_s=1e-2)


def speeds():
    return tuple(
        CollectiveSpeed(
            kind=kind, bandwidth_bytes_per_s=5e10 * (number + 1), latency_s=1e-6 * (number + 1), launch_s=5e-6
        )
        for number, kind in enumerate(GroupCollective)
    )


def samples_of(level):
    return [
        CollectiveSample(
            kind=kind, group_size=size, size_bytes=size_bytes,
            time_s=group_time_s(kind, (LevelSpan(level=level, size=size),), size_bytes),
        )
        for kind in GroupCollective
        for size in (2, 4, 8)
        for size_bytes in (2**25, 2**27, 2**29)  # Large enough for a ring, not a tree.
    ]  # fmt: skip


def test_the_constants_come_back():
    level = dataclasses.replace(LEVEL, collectives=speeds())
    found = {speed.kind: speed for speed in fit_collectives(samples_of(level))}
    for speed in speeds():
        fitted = found[speed.kind]
        assert fitted.bandwidth_bytes_per_s == pytest.approx(speed.bandwidth_bytes_per_s, rel=1e-3)
        # A permute is one step for groups of any size: its latency is part of the launch.
        begin_s = fitted.launch_s + fitted.latency_s
        assert begin_s == pytest.approx(speed.launch_s + speed.latency_s, rel=0.05)
        assert fitted.num_samples == 9
        assert fitted.worst_error < 1e-3


def test_a_level_uses_the_speed_of_the_kind():
    level = dataclasses.replace(LEVEL, collectives=speeds()[:1])
    spans = (LevelSpan(level=level, size=8),)
    gather_s = group_time_s(GroupCollective.ALL_GATHER, spans, 8e6)
    assert gather_s == pytest.approx(5e-6 + 7 * 1e-6 + 7e6 / 5e10)
    assert group_time_s(GroupCollective.ALL_TO_ALL, spans, 8e6) == pytest.approx(1e-2 + 7e-3 + 7e6 / 1e9)


def test_speeds_in_a_file():
    cluster = load_cluster("h200-8")
    (level,) = levels_of(cluster)
    with_speeds = dataclasses.replace(cluster, levels=(dataclasses.replace(level, collectives=speeds()),))
    text = cluster_text(with_speeds)
    assert text.count("[[levels.collectives]]") == 5
    assert parse_cluster(text) == with_speeds
    with pytest.raises(ClusterError, match=r"levels\[0\]\.collectives\[0\]\.bandwidth_bytes_per_s"):
        parse_cluster(text.replace("bandwidth_bytes_per_s = 50000000000.0", "bandwidth_bytes_per_s = 0.0"))


def test_times_that_say_nothing():
    kind = GroupCollective.ALL_REDUCE
    flat = [CollectiveSample(kind=kind, group_size=4, size_bytes=size, time_s=1e-3) for size in (1e3, 1e6)]
    with pytest.raises(ClusterError, match=r"the times of all_reduce do not grow with its bytes"):
        fit_collectives(flat)
    with pytest.raises(ClusterError, match=r"all_reduce needs samples of two sizes"):
        fit_collectives(flat[:1])
