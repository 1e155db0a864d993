"""Connects the client process to a Ray cluster that is already running, or raises an error that says why it cannot."""

import importlib
import importlib.util
import re
import threading
from typing import Any

from jaxquard._install_hint import install_hint
from jaxquard.errors import MeshError
from jaxquard.runtime.ray.client.addresses import RayAddress, check_answers, parse_address
from jaxquard.runtime.ray.client.import_ray import environment, import_ray, kept_settings, quiet
from jaxquard.runtime.ray.client.private_ray import errors_not_printed, loopback_allowed

_CLIENT_LIMIT_S = 60.0
"""The head starts a process for each client. If that fails, Ray's client waits for ever."""
_PING_S = 5.0
_CLIENT_MODULES = (
    "grpc",
    "ray._private.grpc_utils",
    "ray.core.generated.ray_client_pb2",
    "ray.core.generated.ray_client_pb2_grpc",
)
_VARIABLES: dict[str, str | None] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # How long Ray asks a control server that answers with refusals; it is up already, so not the usual 20 s.
    "RAY_gcs_server_port_wait_time_s": "5",
}
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable in which a submitted job has its environment; Ray refuses to be given that twice."""
_MIXED_UP = {
    True: ("control server, not its client server", "the address without ray://, or the port for clients (10001)"),
    False: ("client server, not its control server", "ray:// before the address, or the port of `ray start` (6379)"),
}
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")


def join_cluster(text: str, *, runtime_env: dict[str, Any] | None = None) -> RayAddress:
    """Connects to the cluster at an address: "ray://host:10001", "host:6379" or "auto".

    Args:
        runtime_env: Ray's environment of the workers; None: that of the submitted job, if this is one.

    Returns:
        The address, found out if it was "auto".

    Raises:
        MeshError: if nothing answers there, or the cluster refuses this process.
    """
    ray = import_ray()
    address = _find_cluster() if text == "auto" else parse_address(text)
    check_answers(address)
    try:
        variables = _VARIABLES if runtime_env is None else _VARIABLES | {_JOB_CONFIG: None}
        options: dict[str, Any] = {} if runtime_env is None else {"runtime_env": runtime_env}
        with quiet(), kept_settings(), loopback_allowed(), errors_not_printed(), environment(variables):
            if address.is_client:
                _join_as_client(address, options)
            else:
                # "auto" as it came: for this host's own cluster Ray finds the token by itself.
                ray.init(address=text, log_to_driver=False, configure_logging=False, **options)
    except MeshError:
        raise
    except Exception as error:
        ray.shutdown()
        raise MeshError(_why(error, address)) from error
    return address


def _find_cluster() -> RayAddress:
    """Finds the cluster that "auto" means: the one in RAY_ADDRESS, or that of this host."""
    from ray._private import services

    try:
        with quiet():
            found = services.get_ray_address_from_environment("auto", None)
    except ConnectionError:
        found = None
    if found is None:
        raise MeshError(
            'address="auto", but no Ray cluster runs on this host. Start one with `ray start --head`, join one with '
            "`ray start --address=HOST:6379`, or leave the address out to start Ray for this program alone."
        )
    return parse_address(found)


def _join_as_client(address: RayAddress, options: dict[str, Any]) -> None:
    if importlib.util.find_spec("grpc") is None:
        raise MeshError(f"{address} is reached through Ray's client, which needs grpcio. {install_hint('ray')}")
    _ping(address)
    failures: list[BaseException] = []

    def connect() -> None:
        try:
            import_ray().init(address=str(address), log_to_driver=False, configure_logging=False, **options)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=connect, name="jaxquard-ray-client", daemon=True)
    thread.start()
    thread.join(_CLIENT_LIMIT_S)
    if thread.is_alive():
        raise MeshError(
            f"The Ray cluster at {address} did not start a server for this client within {_CLIENT_LIMIT_S:g} s. Try "
            "again, or see ray_client_server*.err among the logs of its head (/tmp/ray/session_latest/logs)."
        )
    if failures:
        raise failures[0]


def _ping(address: RayAddress) -> None:
    """Asks Ray's client server for an answer; Ray would retry for long what it refuses."""
    grpc, utils, messages, stubs = map(_module, _CLIENT_MODULES)
    request = messages.ClusterInfoRequest(type=messages.ClusterInfoType.PING)
    with utils.init_grpc_channel(str(address).removeprefix("ray://")) as channel:
        try:
            stubs.RayletDriverStub(channel).ClusterInfo(request, timeout=_PING_S)
        except grpc.RpcError as error:
            raise ConnectionError(f"{error.code().name}: {error.details()}") from None


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _why(error: Exception, address: RayAddress) -> str:
    causes: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    text = "\n".join(causes)
    versions = _VERSIONS.findall(text)
    if len(versions) >= 2:
        (their_ray, their_python), (our_ray, our_python) = versions[:2]
        return (
            f"The Ray cluster at {address} has Ray {their_ray} and Python {their_python}, this process has Ray "
            f"{our_ray} and Python {our_python}. Use the same Python here, and `pip install ray=={their_ray}`."
        )
    if "AuthenticationError" in text or "UNAUTHENTICATED" in text:
        return (
            f"The Ray cluster at {address} asks for a token. Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH to the token of its head (`ray get-auth-token` there)."
        )
    if "UNIMPLEMENTED" in text or "Method not found" in text:
        found, use = _MIXED_UP[address.is_client]
        return f"At {address} listens Ray's {found}. Use {use}."
    if "No node info found" in text or "resolve node to connect" in text:
        return (
            f"This host is not part of the Ray cluster at {address}. Run `ray start --address={address}` here, or "
            "connect from outside with ray://HOST:10001."
        )
    return f"The Ray cluster at {address} answered, but did not let this process join: {causes[0].splitlines()[0]}"
