import importlib.metadata

import jax
import pytest

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.cluster import versions
from jaxquard.runtime.ray.cluster.hosts import Host, HostUnreachable, list_hosts
from jaxquard.runtime.ray.cluster.versions import check_versions, our_versions
from tests.runtime.ray.cluster_hosts import joined

pytest.importorskip("ray")

HOST = Host(node_id="1", ip="10.0.0.7", hostname="node7")


@pytest.fixture
def answer(monkeypatch):
    """Lets every host answer with our versions, changed as given."""

    def answer_with(**changes):
        monkeypatch.setattr(versions, "run_on_hosts", lambda _, ids, **__: tuple(our_versions() | changes for _ in ids))

    return answer_with


def test_ours():
    ours = our_versions()
    assert ours["jax"] == jax.__version__
    assert ours["ray"] == importlib.metadata.version("ray")
    assert list(ours) == ["python", "jax", "jaxlib", "jaxquard", "ray"]


@pytest.mark.ray
def test_every_host_is_asked(cluster):
    with joined(cluster):
        hosts = [host.host for host in list_hosts()]
        assert len(hosts) == 3
        check_versions(hosts * 2)
        with pytest.raises(
            MeshError, match=rf"has jax {jax.__version__}, this process has jax 0\.0\.1\. .*jax==0\.0\.1"
        ):
            check_versions(hosts, expected=our_versions() | {"jax": "0.0.1"})


def test_another_jax(answer):
    answer(jax="0.9.0")
    with pytest.raises(MeshError) as refused:
        check_versions([HOST])
    assert str(refused.value) == (
        f"Host node7 (10.0.0.7) has jax 0.9.0, this process has jax {jax.__version__}. Run `pip install "
        f"jax=={jax.__version__}` there, in the environment in which Ray was started."
    )


def test_another_python(answer):
    answer(python="3.9")
    with pytest.raises(MeshError, match=r"^Host node7 \(10\.0\.0\.7\) runs Python 3\.9, this process Python 3\.1"):
        check_versions([HOST])


def test_no_jaxquard(answer):
    answer(jaxquard=None)
    with pytest.raises(MeshError, match=r"has no jaxquard, this process has jaxquard .*Run `pip install jaxquard"):
        check_versions([HOST])


def test_a_checkout_counts_as_the_same(answer):
    answer(jaxquard="")
    check_versions([HOST])


def test_no_answer(monkeypatch):
    monkeypatch.setattr(versions, "run_on_hosts", lambda *_, **__: (HostUnreachable("no answer within 60 s"),))
    with pytest.raises(MeshError, match=r"^Host node7 .* could not be asked for its versions: no answer within 60 s\."):
        check_versions([HOST])
