import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.client.packing import pack
from jaxquard.runtime.ray.cluster.hosts import list_hosts
from jaxquard.runtime.ray.cluster.place_actors import bundle, choose_hosts, place_actors
from jaxquard.runtime.ray.messages import WorkerConfig
from tests.runtime.ray.cluster_hosts import joined, wait_until_free
from tests.runtime.ray.processes import wait_until

pytest.importorskip("ray")

CONFIG = WorkerConfig(
    actor=0,
    num_actors=2,
    rank=0,
    num_processes=2,
    platform="cpu",
    num_devices=1,
    mesh_shape=(2,),
    axis_names=("data",),
    transport="stream",
)


@pytest.fixture(scope="module")
def connection(cluster):
    with joined(cluster) as session:
        yield session


@pytest.fixture
def session(connection):
    """A head with 2 CPUs, a host with 1 GPU, a host with 4."""
    wait_until_free()
    return connection


def test_bundle_per_platform():
    assert bundle("cpu", 8) == {"CPU": 1}
    assert bundle("gpu", 2) == {"CPU": 1, "GPU": 2}
    assert bundle("tpu", 4) == {"CPU": 1, "TPU": 4}


def test_neighbours_are_next_to_each_other():
    assert choose_hosts(4, 1, [2, 0, 3]) == [0, 0, 2, 2]


def test_processes_of_an_actor_stay_together():
    assert choose_hosts(2, 2, [1, 2, 2]) == [1, 1, 2, 2]
    assert choose_hosts(2, 2, [1, 3]) == [1, 1, 0, 1]


def test_no_room():
    assert choose_hosts(2, 2, [1, 2]) is None


@given(
    num_actors=st.integers(1, 6),
    processes=st.integers(1, 4),
    capacities=st.lists(st.integers(0, 6), min_size=1, max_size=5),
)
def test_choice_fits_whenever_it_can(num_actors, processes, capacities):
    chosen = choose_hosts(num_actors, processes, capacities)
    if sum(capacities) < num_actors * processes:
        assert chosen is None
        return
    assert chosen is not None
    assert len(chosen) == num_actors * processes
    assert all(chosen.count(host) <= room for host, room in enumerate(capacities))
    actors = [set(chosen[first : first + processes]) for first in range(0, len(chosen), processes)]
    num_whole = sum(len(hosts) == 1 for hosts in actors)
    assert num_whole >= min(num_actors, sum(room // processes for room in capacities))


def test_unknown_platform():
    with pytest.raises(MeshError, match=r"^platform='xpu' is not known. Use one of: 'cpu', 'gpu', 'tpu'.$"):
        place_actors(1, platform="xpu")


@pytest.mark.ray
def test_actors_run_where_they_were_placed(session):
    placement = place_actors(2, 2, 1)
    try:
        assert placement.platform == "gpu"
        assert [len(set(hosts)) for hosts in placement.hosts] == [1, 1]
        config = pack(CONFIG).payload
        places = [(actor, process) for actor in (0, 1) for process in (0, 1)]
        workers = [placement.start_worker(config, actor=actor, process=process) for actor, process in places]
        found = [placement.client.call(worker, "describe", ()).value() for worker in workers]
        assert [info.node_id for info in found] == [host.node_id for hosts in placement.hosts for host in hosts]
    finally:
        placement.close()


@pytest.mark.ray
def test_places_are_free_again_after_close(session):
    for _ in range(3):
        place_actors(5, 1, 1, platform="gpu").close()


@pytest.mark.ray
def test_cpu_actors_take_a_cpu_each(session):
    placement = place_actors(8, 1, 16, platform="cpu")
    placement.close()
    assert len({hosts[0].node_id for hosts in placement.hosts}) == 3


@pytest.mark.ray
def test_too_few_gpus_says_what_is_free_where(session):
    with pytest.raises(MeshError) as refused:
        place_actors(4, 1, 2)
    text = str(refused.value)
    assert "\n" not in text
    assert text.startswith("4 actors need 4 × (1 CPU, 2 GPU), each on one host, but the Ray cluster has room for 2; ")
    assert "2 of 2 CPU, 0 of 0 GPU; " in text
    assert "2 of 2 CPU, 1 of 1 GPU" in text
    assert "4 of 4 CPU, 4 of 4 GPU" in text
    assert text.endswith("Use fewer actors or a smaller spmd_mesh, or add hosts with `ray start --address=HOST:PORT`.")
    assert "(127.0.0.1)" in text


@pytest.mark.ray
def test_no_host_has_so_many(session):
    with pytest.raises(MeshError, match=r"1 actor needs 1 × \(1 CPU, 8 GPU\).*No host has 8 GPU: use a smaller spmd_"):
        place_actors(1, 1, 8)


@pytest.mark.ray
def test_no_host_has_any(session):
    with pytest.raises(MeshError, match=r'No host has a TPU: use platform="cpu", or start Ray where there are some\.$'):
        place_actors(1, 1, 8, platform="tpu")


@pytest.mark.ray
def test_what_others_hold_is_not_free(session):
    held = place_actors(5, 1, 1, platform="gpu")
    wait_until(lambda: not any(host.free.get("GPU") for host in list_hosts()))
    try:
        with pytest.raises(MeshError, match=r"has room for 0; free: .*0 of 4 GPU"):
            place_actors(2, 1, 1, platform="gpu")
    finally:
        held.close()


@pytest.mark.ray
def test_places_that_are_taken_meanwhile(session, monkeypatch):
    held = place_actors(5, 1, 1, platform="gpu")
    hosts = [hosts[0] for hosts in held.hosts]
    monkeypatch.setattr("jaxquard.runtime.ray.cluster.place_actors._choose_when_free", lambda *_: hosts)
    try:
        with pytest.raises(MeshError, match=r"^Ray did not reserve 5 × \(1 CPU, 1 GPU\) on .* within 0.5 s, though"):
            place_actors(5, 1, 1, platform="gpu", timeout_s=0.5)
    finally:
        held.close()
