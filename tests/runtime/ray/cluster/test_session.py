import contextlib
import gc
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.client import private_ray
from jaxquard.runtime.ray.client.addresses import check_answers, parse_address
from jaxquard.runtime.ray.client.import_ray import kept_settings, quiet
from jaxquard.runtime.ray.client.join_cluster import join_cluster
from jaxquard.runtime.ray.client.private_ray import loopback_allowed
from jaxquard.runtime.ray.client.ray_commands import RayCommands, WantedRay
from jaxquard.runtime.ray.client.ray_folder import remove_stale_folders
from jaxquard.runtime.ray.cluster.client_process import RayLost, current_client
from jaxquard.runtime.ray.cluster.hosts import list_hosts
from jaxquard.runtime.ray.cluster.session import start_or_join
from tests.runtime.ray.cluster_hosts import joined, run_somewhere
from tests.runtime.ray.processes import client_processes, name_of, wait_until

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")

START = (
    "from jaxquard.runtime.ray.cluster.session import start_or_join; session = start_or_join(); "
    "from tests.runtime.ray.cluster_hosts import run_somewhere"
)
WORK = "run_somewhere(); print('up', flush=True)"
ROOT = Path(__file__).parents[4]


@contextlib.contextmanager
def private():
    session = start_or_join()
    try:
        yield session
    finally:
        session.close()


@contextlib.contextmanager
def in_this_process():
    """A private Ray without a client process, so that a test can reach into how it starts."""
    commands = RayCommands()
    commands.connect(WantedRay())
    try:
        yield
    finally:
        commands.close()


def processes_of_ray():
    """The processes that Ray runs below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and any("ray" in word for word in process.cmdline()):
                found.append(process)
    return found


@contextlib.contextmanager
def program(text):
    """Another program, and all of its processes, which are ended in any case."""
    with subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        start_new_session=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def descendants(child):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(child.pid).children(recursive=True)
    return []


# ---- A Ray of our own


@pytest.mark.slow
@pytest.mark.ray
def test_nothing_is_left_behind_and_it_starts_again(capfd):
    others, variables = {process.pid for process in processes_of_ray()}, dict(os.environ)
    handler = signal.getsignal(signal.SIGTERM)
    for _ in range(2):
        session = start_or_join(num_cpus=3)
        assert session.is_private
        assert sum(host.total["CPU"] for host in list_hosts()) >= 3
        started = [process for process in processes_of_ray() if process.pid not in others]
        directory = directory_of(started)
        assert directory.stat().st_mode & 0o777 == 0o700
        session.close()
        session.close()
        assert not client_processes()
        assert not [process for process in started if process.is_running()]
        assert not directory.exists()
    assert dict(os.environ) == variables
    assert signal.getsignal(signal.SIGTERM) == handler
    assert capfd.readouterr() == ("", "")


def directory_of(processes):
    """The temporary directory in the command line of the raylet, which has Ray's own inside."""
    (raylet,) = (process for process in processes if process.name() == "raylet")
    (option,) = (word for word in raylet.cmdline() if word.startswith("--temp_dir="))
    return Path(option.removeprefix("--temp_dir=")).parent


@pytest.mark.slow
@pytest.mark.ray
def test_it_is_private():
    with private() as session:
        run_somewhere()
        processes = [psutil.Process(), *processes_of_ray()]
        # Actors would wait for all else that this host does: Ray's own choice is 15.
        assert {process.nice() for process in processes} == {psutil.Process().nice()}
        listening = {
            connection.laddr.ip
            for process in processes
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
        assert not [line for line in map(command_line, processes[1:]) if "dashboard.py" in line or "monitor" in line]
        refuses_strangers(session)
        refuses_another_cluster(session)
        assert not ray.is_initialized()


def command_line(process):
    return " ".join(process.cmdline())


def refuses_strangers(session):
    text = f"from jaxquard.runtime.ray.client.join_cluster import join_cluster; join_cluster({session.address!r})"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=240, check=False)
    assert f"The Ray cluster at {session.address} asks for a token. Set RAY_AUTH_MODE=token" in found.stderr


def refuses_another_cluster(session):
    with pytest.raises(MeshError) as refused:
        start_or_join("ray://10.0.0.1:10001")
    assert str(refused.value) == (
        f"address='ray://10.0.0.1:10001', but this process is already connected to Ray at {session.address}, and can "
        "be connected to one only. Close the other meshes first, or leave the address out."
    )


@pytest.mark.ray
def test_the_last_one_ends_it():
    first, second = start_or_join(), start_or_join()
    first.close()
    first.close()
    assert len(client_processes()) == 1
    del second
    gc.collect()
    assert not client_processes()


@pytest.mark.ray
def test_it_outlives_its_thread_but_no_frozen_worker_outlives_it():
    sessions = []
    thread = threading.Thread(target=lambda: sessions.append(start_or_join()))
    thread.start()
    thread.join()
    time.sleep(0.2)
    try:
        pid = run_somewhere()
        os.kill(pid, signal.SIGSTOP)
    finally:
        sessions.pop().close()
    wait_until(lambda: not psutil.pid_exists(pid))


@pytest.mark.ray
def test_a_client_process_that_is_killed_is_missed_and_replaced():
    lost = queue.SimpleQueue()
    with private() as session:
        session.on_loss(lost.put)
        (client,) = client_processes()
        client.kill()
        reason = lost.get(timeout=60)
        assert reason == f"jaxquard's client of Ray (process {client.pid}) was killed by signal 9"
        assert session.find_loss() == reason
        with pytest.raises(RayLost, match=r"was killed by signal 9, and all actors are lost with Ray: call mesh\.res"):
            list_hosts()
        session.reconnect()
        assert run_somewhere() != client.pid
        ray.shutdown()  # The program's own connection, which it has not.
        assert run_somewhere()
    assert not client_processes()


@pytest.mark.ray
def test_a_program_that_ends_leaves_nothing_and_says_nothing():
    with program(f"{START}; {WORK}; input()") as child:
        assert child.stdout.readline() == "up\n"
        family = descendants(child)
        child.stdin.write("\n")
        child.stdin.close()
        assert child.wait(120) == 0
        assert child.stderr.read() == ""
    assert family
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive


@pytest.mark.slow  # One that is killed in a step is not: `test_ending_on_ray`.
@pytest.mark.ray
def test_a_program_that_is_killed_leaves_nothing():
    with program(f"{START}; {WORK}; input()") as child:
        assert child.stdout.readline() == "up\n"
        family = descendants(child)
        directory = directory_of(family)
        child.kill()
    _, alive = psutil.wait_procs(family, timeout=120)
    assert len(family) >= 6
    assert not alive
    assert not directory.exists()


@pytest.mark.slow  # Without Ray: `test_ray_folder`.
@pytest.mark.ray
def test_what_a_killed_program_and_its_reaper_left_is_removed_at_the_next_start():
    with program(f"{START}; {WORK}; input()") as child:
        assert child.stdout.readline() == "up\n"
        family = descendants(child)
        directory = directory_of(family)
        (reaper,) = (process for process in family if any(word.endswith("reaper.py") for word in process.cmdline()))
        (client,) = (process for process in family if any("ray.client.serve" in word for word in process.cmdline()))
        reaper.kill()
        client.kill()  # It would remove the folder too.
        child.kill()
    wait_until(lambda: not psutil.pid_exists(client.pid) or client.status() == psutil.STATUS_ZOMBIE)
    assert directory.exists()
    # Threads of a killed process may hold its files for a moment longer than it counts as running.
    wait_until(lambda: remove_stale_folders() or not directory.exists())
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive


@pytest.mark.ray
@pytest.mark.slow
def test_a_start_that_fails_is_tried_again(monkeypatch):
    others = set(processes_of_ray())
    start_node, failures = private_ray._start_node, [RuntimeError("too busy")]

    def fail_once(*args):
        if failures:
            raise failures.pop()
        return start_node(*args)

    monkeypatch.setattr(private_ray, "_start_node", fail_once)
    with in_this_process():
        directory = directory_of(set(processes_of_ray()) - others)
        remove_stale_folders()
        assert (directory / "token").exists()
        assert ray.get(ray.remote(num_cpus=0)(lambda: 7).remote()) == 7
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.ray
def test_ctrl_c_while_starting_leaves_nothing():
    with program(f"{START}; input()") as child:
        wait_until(lambda: "gcs_server" in map(name_of, descendants(child)), limit_s=240)
        child.send_signal(signal.SIGINT)
        family = descendants(child)
        assert child.wait(120) != 0
        assert "KeyboardInterrupt" in child.stderr.read()
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive


@pytest.mark.ray
def test_a_node_that_cannot_start(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no room on the device\nmore")

    monkeypatch.setattr("jaxquard.runtime.ray.client.private_ray._start_node", fail)
    with pytest.raises(MeshError, match=r"^Ray could not be started on this host: no room on the device$"):
        RayCommands().connect(WantedRay())
    assert not [thread for thread in threading.enumerate() if thread.name == "jaxquard-ray"]


# ---- A Ray that is there


@pytest.mark.ray
def test_the_programs_own_connection_is_used_and_left_alone(cluster):
    with quiet(), kept_settings(), loopback_allowed():
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"env_vars": {"OF_THE_PROGRAM": "7"}},
        )
    try:
        session = start_or_join()
        assert not session.is_private
        assert session.address == cluster.address
        start_or_join(cluster.address).close()
        assert current_client().request("run_on_hosts", variable_reader, [list_hosts()[0].host.node_id], 60.0) == [
            (True, "7")
        ]
        session.close()
        assert ray.is_initialized()
        assert ray.get(ray.remote(num_cpus=0)(lambda: 7).remote(), timeout=60) == 7
    finally:
        ray.shutdown()


def variable_reader():
    def read():
        import os

        return os.environ.get("OF_THE_PROGRAM")

    return read


@pytest.mark.ray
def test_a_cluster_is_joined_and_left(cluster):
    for _ in range(2):
        with joined(cluster) as session:
            assert not session.is_private
            assert len(list_hosts()) >= 3
        assert not client_processes()


@pytest.mark.ray
def test_the_same_address_shares_the_connection(cluster):
    with joined(cluster):
        again = start_or_join(cluster.address.replace("127.0.0.1", "localhost"))
        start_or_join().close()
        start_or_join("auto").close()
        again.close()
        assert len(client_processes()) == 1
        assert len(list_hosts()) >= 3


@pytest.mark.ray
def test_another_version_of_ray_there(cluster, monkeypatch):
    from ray._private.utils import check_version_info

    def init(**_):
        check_version_info({"ray_version": "2.9.0", "python_version": "3.9.1"}, "this process")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(MeshError) as refused:
        join_cluster(cluster.address)
    assert str(refused.value).startswith(f"The Ray cluster at {cluster.address} has Ray 2.9.0 and Python 3.9.1, this ")
    assert str(refused.value).endswith("Use the same Python here, and `pip install ray==2.9.0`.")


@pytest.mark.ray
def test_a_client_address_needs_the_client(cluster):
    with pytest.raises(MeshError) as refused:
        join_cluster(f"ray://{cluster.address}")
    lines = (
        "needs grpcio. Run: pip install 'jaxquard[ray]', or '.[ray]' in a checkout.",
        "listens Ray's control server, not its client server.",
    )
    assert any(line in str(refused.value) for line in lines)


# ---- An address where no Ray is


def test_refused():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(MeshError) as refused:
            join_cluster(address)
    assert str(refused.value) == (
        f"No Ray cluster could be reached at {address}: connection refused. Is it running there (`ray start --head "
        f"--port={address[10:]}`), and may this host connect to that port?"
    )


def test_a_black_hole():
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        # The queue is full after these, and Linux drops further attempts without a word.
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        begin = time.monotonic()
        with pytest.raises(MeshError, match=r"could be reached at ray://127\.0\.0\.1:\d+: no answer within 3 s\. "):
            join_cluster(f"ray://127.0.0.1:{server.getsockname()[1]}")
        assert time.monotonic() - begin < 60


def test_not_ray():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = parse_address(f"127.0.0.1:{server.getsockname()[1]}")

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MeshError, match=r"^Something listens at 127\.0\.0\.1:\d+, but it is not Ray\. Give "):
            check_answers(address)
        thread.join()


def test_silent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = parse_address(f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(MeshError, match=r"but it is not Ray\."):
            check_answers(address)


def test_unknown_host():
    with pytest.raises(MeshError, match=r"at no-such-host\.invalid:6379: the host name is not known"):
        join_cluster("no-such-host.invalid:6379")


@pytest.mark.parametrize("address", ["", "head", "head:", ":6379", "head:x", "head:0", "http://head:1", "ray://head"])
def test_not_an_address(address):
    with pytest.raises(
        MeshError, match=r"is not the address of a Ray cluster\. Give \"ray://host:10001\", \"host:6379\""
    ):
        parse_address(address)


@pytest.mark.parametrize("address", ["head:6379", "ray://head:10001", "[::1]:6379", "ray://[fd00::2]:10001"])
def test_addresses_read_back(address):
    assert str(parse_address(address)) == address


def test_auto_without_a_cluster(monkeypatch):
    monkeypatch.setattr("ray._private.services.get_ray_address_from_environment", lambda *_: None)
    with pytest.raises(MeshError, match=r'^address="auto", but no Ray cluster runs on this host\. Start one with'):
        join_cluster("auto")


# ---- No Ray at all


def test_ray_is_imported_only_when_needed_and_missed_in_one_line():
    text = """
import sys
import jaxquard, jaxquard.runtime.ray.cluster.session as session, jaxquard.runtime.ray.cluster.versions
import jaxquard.runtime.ray.cluster.place_actors, jaxquard.runtime.ray.cluster.hosts
assert "ray" not in sys.modules
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "ray":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
sys.meta_path.insert(0, Blocker())
try:
    session.start_or_join()
except jaxquard.errors.MeshError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=240, check=True)
    hint = "Run: pip install 'jaxquard[ray]', or '.[ray]' in a checkout."
    assert found.stdout == f'runtime="ray" needs Ray, which is not installed. {hint}\n'
