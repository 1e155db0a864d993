import pytest

from jaxquard.cluster import levels_of, load_cluster
from jaxquard.errors import ClusterError
from jaxquard.simulate import ActorLink, link_actors
from jaxquard.simulate.actor_link import link_chips


def test_actors_of_a_host_are_linked_by_nvlink_and_others_by_the_network():
    cluster = load_cluster("h100-8x2")
    node, network = levels_of(cluster)
    links = link_actors(cluster, num_actors=4, chips_apart=4)
    assert len(links) == len(list(links)) == 12
    assert (0, 4) not in links
    assert (1, 1) not in links
    for (source, target), link in links.items():
        level = node if source // 2 == target // 2 else network
        assert link.bandwidth_bytes_per_s == level.bandwidth_bytes_per_s
        assert link.latency_s == level.launch_s + level.latency_s


def test_a_torus_counts_the_links_on_the_way():
    (torus,) = levels_of(load_cluster("v5e-4x8"))
    one = link_chips((torus,), 0, 1)
    assert one.latency_s == pytest.approx(torus.launch_s + torus.latency_s)
    # Chip 19 is in row 2, column 3.
    assert link_chips((torus,), 0, 19).latency_s == pytest.approx(torus.launch_s + 5 * torus.latency_s)


def test_rings_are_walked_the_shorter_way():
    (torus,) = levels_of(load_cluster("tpu-v4-4x4x4"))
    assert torus.wraps_at == 4
    assert link_chips((torus,), 0, 3).latency_s == link_chips((torus,), 0, 1).latency_s


def test_more_chips_than_there_are():
    with pytest.raises(ClusterError) as caught:
        link_actors(load_cluster("h100-8x2"), num_actors=4, chips_apart=8)
    assert str(caught.value) == (
        "4 actors, 8 chips apart, reach over 32 chips, but h100-8x2 has 16. Use fewer actors, or a larger cluster."
    )


def test_the_time_of_a_transfer():
    assert ActorLink(latency_s=1.0, bandwidth_bytes_per_s=2.0).time_s(6) == 4.0
    assert ActorLink().time_s(10**12) == 0.0
