"""A Ray of this program alone: bound to loopback, guarded by a token, gone when the program is.

`ray.init()` also starts a dashboard, an autoscaler and a log monitor, and turns 127.0.0.1 into the address
of a network card, so that its servers listen on every interface. Here the node is made directly, as
`ray.cluster_utils` does: two servers (`gcs_server`, `raylet`) and the raylet's two agents, all on 127.0.0.1.

Whatever needs `ray._private` to start a node is in this file.

The kernel kills the two servers when the thread that started them ends (PR_SET_PDEATHSIG). So a separate thread, the
keeper, starts them and waits for `close`: the caller's thread may end, and Ctrl-C cannot interrupt a start halfway.
What a killed program leaves behind, its reaper ends (`ray_folder`).
"""

import contextlib
import importlib
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxquard.runtime.ray.client.import_ray import environment, import_ray, kept_settings, quiet
from jaxquard.runtime.ray.client.ray_folder import RayFolder, remove_stale_folders
from jaxquard.runtime.ray.client.reaper import await_reaped, end_processes

_LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 256 * 2**20
"""Shared memory for host inputs and results; taken only when used."""
_NUM_CPUS = 4096
"""Ray's CPUs are a count, not cores; many, so that meshes which share this Ray all find theirs."""
_TOO_BUSY = "its raylet did not register in time. Is the host busy? Give a larger start_timeout_s."
_MAX_STARTS = 3
"""How often to try, while there is time: a busy host may miss limits of Ray's that cannot be set."""
_REAP_S = 2.0
"""The time that `init` may take to notice that processes have ended."""
_CONFIG = {
    "prestart_worker_first_driver": False,
    "enable_worker_prestart": False,
    # 15 by default: an actor would wait for whatever else this host does, this process included.
    "worker_niceness": 0,
    # The control server would keep about 2 kB for each call of an actor, up to 100,000 of them.
    "task_events_report_interval_ms": 0,
}
_START_LIMITS_S = ("worker_register_timeout_seconds", "raylet_start_wait_time_s", "gcs_rpc_server_connect_timeout_s")


class PrivateRay:
    """Starts Ray's processes and connects this process to them; `close` ends both.

    Args:
        num_cpus: the minimum number of processes that it must hold.
        start_timeout_s: how long it may take to start.

    Attributes:
        servers: names and process ids of its two servers.

    Raises:
        Exception: whatever Ray raises if it cannot start; then nothing is left running.
    """

    servers: tuple[tuple[str, int], ...] = ()

    def __init__(self, *, num_cpus: int, start_timeout_s: float) -> None:
        import_ray()
        remove_stale_folders()
        with quiet():
            self._folder = RayFolder()
        self._variables = _variables(self._folder.path, start_timeout_s)
        self._num_cpus, self._start_timeout_s = max(num_cpus, _NUM_CPUS), start_timeout_s
        self._node: Any = None
        self._failure: BaseException | None = None
        self._closing = threading.Lock()
        self._up, self._down = threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="jaxquard-ray", daemon=True)
        self._keeper.start()
        try:
            self._up.wait()
            if self._failure is not None:
                raise self._failure
            self._connect()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The address of its control server."""
        return self._node.gcs_address

    def close(self) -> None:
        """Ends all of its processes and removes its directory; returns when they are gone."""
        # A start that is under way is let finish: half a node could not be ended.
        self._up.wait()
        with self._closing:
            if not self._down.is_set():
                with quiet():
                    import_ray().shutdown()
                self._down.set()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()

    def _connect(self) -> None:
        with quiet(), kept_settings(), loopback_allowed(), errors_not_printed(), environment(self._variables):
            import_ray().init(address=self.address, log_to_driver=False, configure_logging=False)

    def _keep(self) -> None:
        try:
            with quiet(), environment(self._variables):
                _reload_token()
                self._node = self._start()
                self.servers = _find_servers(self._node)
        except BaseException as error:
            self._failure = error
        self._up.set()
        self._down.wait()
        ended = end_processes(self._folder.path)
        if self._node is not None:
            self._node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        await_reaped(ended, limit_s=_REAP_S)
        _reload_token()
        self._folder.close()

    def _start(self) -> Any:
        end_s = time.monotonic() + self._start_timeout_s
        for attempt in range(_MAX_STARTS):
            directory = self._folder.path / "r" if attempt == 0 else self._folder.path / f"r{attempt}"
            try:
                return _start_node(directory, self._num_cpus, end_s - time.monotonic())
            except Exception:
                end_processes(self._folder.path)
                if attempt == _MAX_STARTS - 1 or time.monotonic() > end_s:
                    raise
        raise AssertionError("unreachable")


@contextlib.contextmanager
def loopback_allowed() -> Iterator[None]:
    """Keeps Ray from replacing 127.0.0.1 by the address of a network card."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def errors_not_printed() -> Iterator[None]:
    """Keeps a connection from printing Ray's messages about processes that die: they come as exceptions."""
    from ray._private import worker

    before = worker.listen_error_messages
    worker.listen_error_messages = lambda worker, threads_stopped: None
    try:
        yield
    finally:
        worker.listen_error_messages = before


def _variables(directory: Path, start_timeout_s: float) -> dict[str, str | None]:
    """Environment variables for Ray's processes: a token without which nobody can connect, and no statistics."""
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    limit = str(max(1, round(start_timeout_s)))
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": None,
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_REDIS_ADDRESS": None,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_server_port_wait_time_s": limit,
        **{f"RAY_{name}": limit for name in _START_LIMITS_S},
    }


def _reload_token() -> None:
    """Makes Ray's library read again from the environment how to authenticate."""
    library: Any = importlib.import_module("ray._raylet")
    library.Config.initialize("")
    library.AuthenticationTokenLoader.instance().reset_cache()


def _start_node(directory: Path, num_cpus: int, timeout_s: float) -> Any:
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class WithoutDashboard(Node):
        # Ray starts its dashboard process even if it is to include no dashboard.
        def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
            pass

        def start_head_processes(self) -> None:
            with _ended_on_failure(self):
                super().start_head_processes()

        def start_ray_processes(self) -> None:
            with _ended_on_failure(self):
                super().start_ray_processes()
                _await_registered(self, timeout_s)

    make_parameters: Any = RayParams  # whose annotations are narrower than what it takes
    parameters = make_parameters(
        node_ip_address=_LOOPBACK,
        num_cpus=num_cpus,
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        include_log_monitor=False,
        no_monitor=True,
        min_worker_port=0,
        max_worker_port=0,
        temp_dir=str(directory),
        # A node writes into what it is given.
        _system_config=_CONFIG | dict.fromkeys(_START_LIMITS_S, max(1, round(timeout_s))),
    )
    return WithoutDashboard(parameters, head=True, shutdown_at_exit=False, spawn_reaper=True)


@contextlib.contextmanager
def _ended_on_failure(node: Any) -> Iterator[None]:
    """Ends the processes of a node that fails to start; nobody else has it."""
    try:
        yield
    except BaseException:
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        raise


def _await_registered(node: Any, timeout_s: float) -> None:
    """Waits until the raylet is known to the control server; Ray itself waits for 30 s, however busy the host is."""
    from ray._private import services

    end_s = time.monotonic() + timeout_s
    while True:
        try:
            services.get_node(node.gcs_address, node._node_id)
            return
        except RuntimeError:
            if any(server.process.poll() is not None for infos in node.all_processes.values() for server in infos):
                raise RuntimeError("a server of Ray ended while it started") from None
            if time.monotonic() > end_s:
                raise TimeoutError(_TOO_BUSY) from None
        time.sleep(0.05)


def _find_servers(node: Any) -> tuple[tuple[str, int], ...]:
    found = [(f"Ray's {name}", info.process.pid) for name, infos in node.all_processes.items() for info in infos]
    # The raylet first: when it dies, this process does, and the control server with it.
    return tuple(sorted(found, key=lambda server: "raylet" not in server[0]))
