"""Checks that every host runs the versions that this process does.

Code reaches an actor as StableHLO of our jax and as pickles of our Python (design decision 6), so both ends must agree.
"""

from collections.abc import Iterable, Mapping

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.client.host_functions import version_reader
from jaxquard.runtime.ray.cluster.hosts import Host, HostUnreachable, run_on_hosts

_TIMEOUT_S = 60.0


def check_versions(
    hosts: Iterable[Host], *, expected: Mapping[str, str | None] | None = None, timeout_s: float = _TIMEOUT_S
) -> None:
    """Compares the versions on hosts with ours.

    Args:
        hosts: the hosts, each once or more often.
        expected: the versions that they must have; by default ours.
        timeout_s: how long the hosts may take to answer.

    Raises:
        MeshError: naming the first host that differs, what it should have and what it has, and what to install.
    """
    hosts = tuple(dict.fromkeys(hosts))
    expected = expected or our_versions()
    answers = run_on_hosts(version_reader, [host.node_id for host in hosts], timeout_s=timeout_s)
    for host, found in zip(hosts, answers, strict=True):
        if isinstance(found, HostUnreachable):
            raise MeshError(f"Host {host} could not be asked for its versions: {found}. Is it up? See `ray status`.")
        _compare(host, expected=expected, found=found)


def our_versions() -> dict[str, str | None]:
    """Returns the versions of this process: two numbers of Python's, whole ones of packages, None for a missing one."""
    return version_reader()()


def _compare(host: Host, *, expected: Mapping[str, str | None], found: Mapping[str, str | None]) -> None:
    for package, ours in expected.items():
        theirs = found.get(package)
        if theirs == ours or (ours and theirs == "") or (ours == "" and theirs):
            continue
        if package == "python":
            raise MeshError(
                f"Host {host} runs Python {theirs}, this process Python {ours}. Start Ray there from an environment "
                f"with Python {ours}."
            )
        pin = f"{package}=={ours}" if ours else package
        has = f"{package} {theirs}" if theirs else f"no {package}"
        raise MeshError(
            f"Host {host} has {has}, this process has {package} {ours}. Run `pip install {pin}` there, in the "
            "environment in which Ray was started."
        )
