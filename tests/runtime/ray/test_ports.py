"""The ports of a mesh on one host: none is ours, all are on loopback, and Ray's ask for a token (docs/security.md)."""

import contextlib
import random
import socket
from pathlib import Path

import jax
import psutil
import pytest

from tests.runtime.ray.processes import call_inside, name_of, process_id
from tests.runtime.test_distributed import fetched, make_batch, make_weights, sgd_step
from tests.runtime.transports.peers.strangers import nonsense
from tests.slow_but_for import slow_but_for

pytestmark = pytest.mark.ray

LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def listening(process):
    """The addresses at which a process listens; none if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [found.laddr for found in process.net_connections(kind="tcp") if found.status == psutil.CONN_LISTEN]
    return []


def all_processes():
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def command_of(process):
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def send(plain, content):
    with contextlib.suppress(ConnectionError):  # Who listens may hang up before it has all of it.
        plain.sendall(content)


def run_step(step):
    """The bits of all results."""
    return [leaf.tobytes() for leaf in jax.tree.leaves(fetched(step(make_weights(), make_batch())))]


def test_an_actor_listens_nowhere_but_for_ray(shared_meshes):
    mesh = shared_meshes["narrow"]
    for actor in range(2):
        ports = listening(psutil.Process(process_id(mesh, actor)))
        assert len(ports) == 1, "Ray's own port, and none of the transport"
        assert ports[0].ip in LOOPBACK


def test_no_socket_of_ours_stays_in_the_folder_of_the_session(shared_meshes):
    mesh = shared_meshes["narrow"]
    for actor in range(2):
        (folder,) = call_inside(mesh, actor, lambda process: process._folder)
        assert not list(Path(folder).glob("jq-*"))


@pytest.mark.parametrize("kind", ["narrow", "collective"])
def test_everything_listens_on_loopback(shared_meshes, kind):
    mesh = shared_meshes[kind]
    run_step(mesh.distributed(sgd_step))
    found = [(name_of(process), address.ip) for process in all_processes() for address in listening(process)]
    assert len(found) >= 5
    assert {ip for _, ip in found} <= LOOPBACK


def test_the_coordinator_of_collectives_has_no_port(shared_meshes):
    mesh = shared_meshes["collective"]
    for actor in range(2):
        assert len(listening(psutil.Process(process_id(mesh, actor)))) == 2, "Ray's own port, and that of gloo"
    (folder,) = call_inside(mesh, 0, lambda process: process._folder)
    assert [path.parent.stat().st_mode & 0o777 for path in Path(folder).glob("jaxquard-*/coordinator")] == [0o700]


def test_the_secret_is_where_only_the_processes_see_it(shared_meshes):
    """Neither in environments, nor on command lines, nor in any file of the session."""
    mesh = shared_meshes["narrow"]
    secret = mesh.engine._secret
    shown = [secret.key, secret.key.hex().encode(), secret.private_key.splitlines()[1].encode()]
    places = [Path(f"/proc/{process.pid}/{name}") for process in all_processes() for name in ("environ", "cmdline")]
    (folder,) = call_inside(mesh, 0, lambda process: process._folder)
    places += [path for path in Path(folder).parent.rglob("*") if path.is_file()]
    contents = {}
    for place in places:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # What another test has started may end now.
            contents[place] = place.read_bytes()
    assert len(contents) > 12
    assert [place for place, content in contents.items() if any(part in content for part in shown)] == []


def test_rays_ports_ask_for_a_token(shared_meshes):
    grpc = pytest.importorskip("grpc")
    mesh = shared_meshes["narrow"]
    actors = {process_id(mesh, actor) for actor in range(2)}
    (folder,) = call_inside(mesh, 0, lambda process: process._folder)
    session = str(Path(folder).parent)
    methods = {
        "gcs_server": ["NodeInfoGcsService/GetAllNodeInfo", "InternalKVGcsService/InternalKVKeys"],
        "raylet": ["NodeManagerService/GetNodeStats", "ObjectManagerService/Pull"],
        "an actor": ["CoreWorkerService/PushTask", "CoreWorkerService/KillActor"],
    }
    refused = set()
    # The tests' own cluster, which asks for no token, may be there too.
    for process in [process for process in all_processes() if process.pid in actors or session in command_of(process)]:
        kind = "an actor" if process.pid in actors else name_of(process)
        tries = [(method, address.port) for method in methods.get(kind, ()) for address in listening(process)]
        for method, port in tries:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/ray.rpc.{method}")(b"", timeout=20)
            assert caught.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
            if caught.value.code() is grpc.StatusCode.UNAUTHENTICATED:
                refused.add(method)
    assert refused == {method for several in methods.values() for method in several}


@pytest.mark.parametrize("count", slow_but_for([5, 300], [5]))
def test_nonsense_at_every_port_does_not_change_a_step(shared_meshes, count):
    mesh = shared_meshes["narrow"]
    step, generator = mesh.distributed(sgd_step), random.Random(count)
    before = run_step(step)
    pids = [process_id(mesh, actor) for actor in range(2)]
    for address in [address for process in all_processes() for address in listening(process)]:
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", address.port), timeout=60) as plain:
                send(plain, nonsense(generator))
    assert run_step(step) == before
    assert [process_id(mesh, actor) for actor in range(2)] == pids
