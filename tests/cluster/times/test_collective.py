"""Collectives over groups: against closed forms, and played step by step on small rings and lines."""

import math
from dataclasses import replace

import pytest

from jaxquard.cluster import GroupCollective, Level, LevelSpan, group_spans, group_time_s, levels_of, load_cluster
from jaxquard.errors import ClusterError

GATHER, SCATTER, REDUCE, EXCHANGE, PERMUTE = GroupCollective
NODE = Level(name="node", dims=(8,), bandwidth_bytes_per_s=100.0, latency_s=0.5, launch_s=2.0)
FABRIC = Level(name="fabric", dims=(16,), bandwidth_bytes_per_s=10.0, latency_s=1.0)


def torus(size, *, is_ring, latency_s=0.0):
    level = Level(name="slice", dims=(size,), is_torus=True, bandwidth_bytes_per_s=1.0, latency_s=latency_s)
    return LevelSpan(level=level, size=size, is_ring=is_ring)


class TestSwitch:
    def test_a_ring(self):
        spans = (LevelSpan(level=NODE, size=8),)
        assert group_time_s(GATHER, spans, 800) == pytest.approx(2 + 7 * (0.5 + 100 / 100))
        assert group_time_s(SCATTER, spans, 800) == group_time_s(GATHER, spans, 800)
        assert group_time_s(PERMUTE, spans, 800) == pytest.approx(2 + 0.5 + 8)
        assert group_time_s(EXCHANGE, spans, 800) == pytest.approx(2 + 7 * 0.5 + 700 / 100)

    def test_an_all_reduce_is_a_tree_for_few_bytes_and_a_ring_for_many(self):
        spans = (LevelSpan(level=NODE, size=8),)
        assert group_time_s(REDUCE, spans, 1) == pytest.approx(2 + 2 * 3 * 0.5 + 2 / 100)
        assert group_time_s(REDUCE, spans, 8000) == pytest.approx(2 + 2 * 7 * (0.5 + 1000 / 100))

    def test_levels_in_turn(self):
        """Inside a host the whole array, between hosts a shard of it through each port."""
        level = Level(name="node", dims=(8,), bandwidth_bytes_per_s=1e3, latency_s=0.0)
        between = Level(name="fabric", dims=(4,), bandwidth_bytes_per_s=10.0, latency_s=100.0)
        spans = (LevelSpan(level=level, size=8), LevelSpan(level=between, size=4))
        in_turn = 8000 * 7 / 8 / 1e3 + 3 * 100 + 1000 * 3 / 4 / 10
        one_ring = 31 * 100 + 8000 * 31 / 32 / 80
        assert in_turn < one_ring
        assert group_time_s(GATHER, spans, 8000) == pytest.approx(in_turn)

    def test_one_ring_through_all_levels_where_latency_is_nothing(self):
        """Pipelined: the slower of a port and of all ports of a host together."""
        level = Level(name="node", dims=(8,), bandwidth_bytes_per_s=100.0, latency_s=0.0)
        between = Level(name="fabric", dims=(4,), bandwidth_bytes_per_s=10.0, latency_s=0.0)
        spans = (LevelSpan(level=level, size=8), LevelSpan(level=between, size=4))
        assert group_time_s(GATHER, spans, 8000) == pytest.approx(8000 * 31 / 32 / 80)

    def test_an_all_to_all_uses_each_level_for_what_crosses_it(self):
        spans = (LevelSpan(level=NODE, size=8), LevelSpan(level=FABRIC, size=2))
        inside, outside = 7 * 0.5 + 1600 * 7 / 16 / 100, 1 * 1.0 + 1600 * 8 / 16 / 10
        assert group_time_s(EXCHANGE, spans, 1600) == pytest.approx(2 + max(inside, outside))

    def test_one_device_moves_nothing(self):
        assert all(group_time_s(kind, (), 1e9) == 0 for kind in GroupCollective)

    def test_more_bytes_and_more_devices_take_longer(self):
        cluster = load_cluster("h100-8x16")
        for kind in GroupCollective:
            times = [
                group_time_s(kind, group_spans(levels_of(cluster), (128 // size, size), {1}), 2**30)
                for size in (2, 4, 8, 16, 32, 64, 128)
            ]
            assert times == sorted(times)
            spans = group_spans(levels_of(cluster), (16, 8), {0, 1})
            assert group_time_s(kind, spans, 2**20) < group_time_s(kind, spans, 2**21)


def play_gather(size, *, is_ring):
    """The time of an all-gather, step by step: each chip passes on what it has, both ways, a shard a second."""
    has = [{chip} for chip in range(size)]
    seconds = 0
    while any(len(of_chip) < size for of_chip in has):
        seconds += 1
        arriving = [set() for _ in range(size)]
        for chip in range(size):
            for other in (chip - 1, chip + 1):
                if not is_ring and not 0 <= other < size:
                    continue
                wanted = sorted(has[chip] - has[other % size] - arriving[other % size], key=lambda s: abs(s - chip))
                if wanted:
                    arriving[other % size].add(wanted[0])
        for chip, shards in enumerate(arriving):
            has[chip] |= shards
    return seconds


class TestTorus:
    @pytest.mark.parametrize("size", [3, 4, 5, 8])
    def test_a_ring_played_step_by_step(self, size):
        """A shard has 1 byte, a link moves 1 byte a second each way."""
        played = play_gather(size, is_ring=True)
        assert math.ceil(group_time_s(GATHER, (torus(size, is_ring=True),), size)) == played

    @pytest.mark.parametrize("size", [2, 3, 4, 8])
    def test_a_line_played_step_by_step(self, size):
        assert group_time_s(GATHER, (torus(size, is_ring=False),), size) == play_gather(size, is_ring=False)

    def test_dims_work_at_the_same_time(self):
        one = (torus(4, is_ring=True),)
        two = (*one, replace(torus(4, is_ring=True), dim=1))
        assert group_time_s(GATHER, two, 16) == pytest.approx(16 * 15 / 16 / 4)
        assert group_time_s(GATHER, one, 16) == pytest.approx(16 * 3 / 4 / 2)

    @pytest.mark.parametrize(("size", "is_ring"), [(8, True), (16, True), (8, False), (16, False)])
    def test_an_all_to_all_by_the_busiest_link(self, size, is_ring):
        """Every chip sends 1 byte to every chip on the shortest way; bytes over each link are counted."""
        loads = dict.fromkeys(((chip, way) for chip in range(size) for way in (1, -1)), 0.0)
        for source in range(size):
            for target in range(size):
                ahead = (target - source) % size
                if not is_ring:
                    ways = [(1, target - source)] if target > source else [(-1, source - target)]
                elif ahead * 2 == size:
                    ways = [(1, ahead), (-1, ahead)]
                else:
                    ways = [(1, ahead)] if ahead * 2 < size else [(-1, size - ahead)]
                for way, distance in ways:
                    for hop in range(distance):
                        loads[(source + way * hop) % size, way] += 1 / len(ways)
        found = group_time_s(EXCHANGE, (torus(size, is_ring=is_ring),), size)
        assert found == pytest.approx(max(loads.values()), rel=0.02)

    def test_latency_counts_the_steps(self):
        assert group_time_s(GATHER, (torus(8, is_ring=True, latency_s=1.0),), 0) == 4
        assert group_time_s(GATHER, (torus(8, is_ring=False, latency_s=1.0),), 0) == 7


@pytest.mark.parametrize(("kind", "size"), [("all_gather", 1), (GATHER, -1), (GATHER, math.nan), (GATHER, "x")])
def test_nonsense_is_refused(kind, size):
    with pytest.raises(ClusterError, match="must be"):
        group_time_s(kind, (), size)
