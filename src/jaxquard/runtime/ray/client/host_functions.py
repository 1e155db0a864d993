"""Functions that run on hosts of the cluster, which may have neither jaxquard nor JAX.

Each is made here by a function with plain arguments. Ray sends it by value: it is defined inside another function, and
imports what it uses inside itself.
"""

from collections.abc import Callable, Sequence

from jaxquard.runtime.ray.worker.self_report import tail_reader


def process_killer(process_id: int) -> Callable[[], bool]:
    """Returns a function that kills a process; it returns True if the process is gone or about to be."""

    def kill() -> bool:
        import os
        import signal

        try:
            os.kill(process_id, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return True

    return kill


def version_reader() -> Callable[[], dict[str, str | None]]:
    """Returns a function that reads versions on any host: it imports neither jax nor jaxquard."""

    def read() -> dict[str, str | None]:
        import sys
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec

        versions: dict[str, str | None] = {"python": ".".join(map(str, sys.version_info[:2]))}
        for package in ("jax", "jaxlib", "jaxquard", "ray"):
            try:
                versions[package] = version(package)
            except PackageNotFoundError:
                # A checkout on the path has no version; we hold it to be the same.
                versions[package] = None if find_spec(package) is None else ""
        return versions

    return read


def trace_reader(activity_path: str, log_paths: Sequence[str]) -> Callable[[], tuple[str, str, int]]:
    """Returns a function that reads the traces of a dead process: its activity, its log, and the kernel's OOM kills."""
    read_log = tail_reader(log_paths)

    def read() -> tuple[str, str, int]:
        def content(path: str) -> str:
            try:
                with open(path, errors="replace") as file:
                    return file.read()
            except OSError:
                return ""

        kills = [line.split()[1] for line in content("/proc/vmstat").splitlines() if line.startswith("oom_kill ")]
        return content(activity_path).strip("\0\n "), read_log(), int(kills[0]) if kills else 0

    return read
