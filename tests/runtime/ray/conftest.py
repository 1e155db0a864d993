"""Fixtures that tests on Ray share: meshes, and one cluster of three "hosts", for those that need several."""

import os
from pathlib import Path

import pytest

from jaxquard.runtime.ray.cluster.hosts import is_this_host, list_hosts
from tests.runtime.ray.cluster_hosts import joined, three_hosts
from tests.runtime.ray.shared_meshes import SharedMeshes

MESHES = pytest.StashKey[SharedMeshes]()


@pytest.fixture(scope="session")
def cluster():
    with three_hosts() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def session(cluster):
    """A session of the module on the cluster."""
    with joined(cluster) as session:
        yield session


@pytest.fixture(params=["this host", "another host"])
def node_id(request, session):
    here, there, _ = sorted((host.host.node_id for host in list_hosts()), key=lambda id_: not is_this_host(id_))
    return here if request.param == "this host" else there


@pytest.fixture(scope="session")
def shared_meshes(request):
    """`shared_meshes["narrow"]` and their kind."""
    meshes = request.config.stash.setdefault(MESHES, SharedMeshes())
    yield meshes
    meshes.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A process is connected to one Ray at most: tests that do not use the shared meshes find none."""
    if item.get_closest_marker("ray") and not _shares(item) and MESHES in item.config.stash:
        item.config.stash[MESHES].close()


def pytest_collection_modifyitems(items):
    """Tests that share meshes come last, so that those are started once."""
    folder = f"{Path(__file__).parent}{os.sep}"
    places = [place for place, item in enumerate(items) if str(item.path).startswith(folder)]
    for place, item in zip(places, sorted((items[place] for place in places), key=_shares), strict=True):
        items[place] = item


def _shares(item):
    return "shared_meshes" in item.fixturenames
