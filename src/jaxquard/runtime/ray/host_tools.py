"""Reads the end of a file and kills a process, on whichever host of the cluster they are.

For the post-mortem of an actor: its own process cannot be asked any more, so its host is.
"""

from jaxquard.runtime.ray.run_on_host import HostUnreachable, run_on_host

_TIMEOUT_S = 5.0


def read_tail(node_id: str, path: str, max_lines: int = 20, *, timeout_s: float = _TIMEOUT_S) -> str | None:
    """The last lines of a file on a host.

    Args:
        node_id: Ray's id of the host.
        path: the file there.
        max_lines: how many lines at most.
        timeout_s: how long another host may take to answer.

    Returns:
        The lines; None if the host does not answer or has no such file.
    """

    def read() -> str | None:
        import os

        most_bytes = 400 * max_lines
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - most_bytes))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return None
        whole = lines[1:] if size > most_bytes and len(lines) > 1 else lines
        return "\n".join(whole[-max_lines:])

    try:
        return run_on_host(read, node_id, timeout_s=timeout_s)
    except HostUnreachable:
        return None


def kill_process(node_id: str, process_id: int, *, timeout_s: float = _TIMEOUT_S) -> bool:
    """Kills a process on a host with SIGKILL, which a frozen process cannot escape either.

    Args:
        node_id: Ray's id of the host.
        process_id: the process there.
        timeout_s: how long another host may take to answer.

    Returns:
        Whether the process is gone or about to be; False if the host does not answer or forbids it.
    """

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

    try:
        return run_on_host(kill, node_id, timeout_s=timeout_s)
    except HostUnreachable:
        return False
