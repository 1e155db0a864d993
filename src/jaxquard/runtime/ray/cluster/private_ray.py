"""A Ray of this process alone: bound to loopback, guarded by a token, gone when this process is.

`ray.init()` also starts a dashboard, an autoscaler and a log monitor, and turns 127.0.0.1 into the address
of a network card, so that its servers listen on every interface. Here the node is made directly, as
`ray.cluster_utils` does: two servers (`gcs_server`, `raylet`) and the raylet's two agents, all on 127.0.0.1.

Whatever needs `ray._private` to start a node is in this file.

The kernel kills the two servers when the thread that started them ends (PR_SET_PDEATHSIG), and the workers end with
the raylet. So a separate thread, the keeper, starts them and waits for `close`: the caller's thread may end, Ctrl-C
cannot interrupt a start halfway, and a killed program leaves nothing behind but the two agents, which first try for a
minute to report the loss.
"""

import contextlib
import importlib
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxquard.runtime.ray.cluster.import_ray import environment, import_ray, kept_settings, quiet

_LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 256 * 2**20
"""Shared memory for host inputs and results; taken only when used."""
_NUM_CPUS = 4096
"""Ray's CPUs are a count, not cores; many, so that meshes which share this Ray all find theirs."""
_GRACE_S = 2.0
"""The time that the raylet's children may take to end by themselves."""
_CONFIG = {
    "prestart_worker_first_driver": False,
    "enable_worker_prestart": False,
    # 15 by default: an actor would wait for whatever else this host does, this process included.
    "worker_niceness": 0,
}


class PrivateRay:
    """Starts Ray's processes and connects this process to them; `close` ends both.

    Raises:
        Exception: whatever Ray raises if it cannot start; then nothing is left running.
    """

    def __init__(self, *, num_cpus: int) -> None:
        import_ray()
        # For this user alone; Ray opens its own directory, inside, to everybody. Not the user's temporary directory:
        # Ray's sockets lie here, and their paths may have 107 bytes at most.
        parent = "/tmp" if Path("/tmp").is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="jaxquard-ray-", dir=parent))
        self._variables = _variables(self.directory)
        self._num_cpus = max(num_cpus, _NUM_CPUS)
        self._node: Any = None
        self._failure: BaseException | None = None
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
                self._node = _start_node(self.directory, self._num_cpus)
        except BaseException as error:
            self._failure = error
        self._up.set()
        self._down.wait()
        if self._node is not None:
            _end(self._node)
        _reload_token()
        shutil.rmtree(self.directory, ignore_errors=True)


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


def _variables(directory: Path) -> dict[str, str | None]:
    """Environment variables for Ray's processes: a token without which nobody can connect, and no statistics."""
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": None,
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_REDIS_ADDRESS": None,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _reload_token() -> None:
    """Makes Ray's library read again from the environment how to authenticate."""
    library: Any = importlib.import_module("ray._raylet")
    library.Config.initialize("")
    library.AuthenticationTokenLoader.instance().reset_cache()


def _start_node(directory: Path, num_cpus: int) -> Any:
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class WithoutDashboard(Node):
        # Ray starts its dashboard process even if it is to include no dashboard.
        def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
            pass

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
        temp_dir=str(directory / "r"),
        _system_config=dict(_CONFIG),  # a node writes into what it is given
    )
    return WithoutDashboard(parameters, head=True, shutdown_at_exit=False, spawn_reaper=True)


def _end(node: Any) -> None:
    """Ends a node and waits for all that it started; the raylet ends its own, but does not wait for them."""
    import psutil

    started = []
    for server in (info.process.pid for infos in node.all_processes.values() for info in infos):
        with contextlib.suppress(psutil.Error):
            started += psutil.Process(server).children(recursive=True)
    node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
    _, alive = psutil.wait_procs(started, timeout=_GRACE_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=_GRACE_S)
