"""Ends what a private Ray leaves behind when its program dies: its processes, and its folder.

`RayFolder` runs this file as a process by itself, which waits until its parent is gone. So it imports nothing but the
standard library. A program that ends by SIGTERM or SIGKILL runs no code any more, and two of Ray's processes, its
agents, would try for a minute to reach servers that are gone.

A process belongs to a Ray if it has the log of a server of that Ray open: all children of the raylet inherit it. The
program itself, and what it forks, have not.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_TICK_S = 0.1
_LIMIT_S = 10.0
_SERVER_LOGS = ("/raylet.out", "/gcs_server.out")


def list_processes(folder: Path) -> list[int]:
    """Lists the processes of this host that have the log of a server in a folder open."""
    processes = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return [process for process in processes if any(_is_server_log(path, folder) for path in _open_files(process))]


def _is_server_log(path: str, folder: Path) -> bool:
    return path.endswith(_SERVER_LOGS) and path.startswith(f"{folder}{os.sep}")


def _open_files(process: int) -> Iterator[str]:
    with contextlib.suppress(OSError):  # It has ended, or belongs to another user.
        for name in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{process}/fd/{name}")


def end_processes(folder: Path, *, limit_s: float = _LIMIT_S) -> set[int]:
    """Kills the processes of a folder, and those that they start meanwhile; returns which, when they have ended."""
    end_s, ended = time.monotonic() + limit_s, set()
    while (processes := list_processes(folder)) and time.monotonic() < end_s:
        ended.update(processes)
        for process in processes:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_TICK_S / 5)
    return ended


def await_reaped(processes: Iterable[int], *, limit_s: float = _LIMIT_S) -> None:
    """Waits until the parents of processes that have ended, or `init`, know so."""
    end_s = time.monotonic() + limit_s
    while any(os.path.exists(f"/proc/{process}") for process in processes) and time.monotonic() < end_s:
        time.sleep(_TICK_S / 10)


def remove_folder(folder: Path) -> None:
    """Ends the processes of a folder, and removes it."""
    end_s = time.monotonic() + _LIMIT_S
    while folder.exists() and time.monotonic() < end_s:
        end_processes(folder)
        # What is in it first: the file that names its owner stays until little is left, for whoever removes the rest.
        for name in _folders_in(folder):
            shutil.rmtree(folder / name, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _folders_in(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def main() -> None:
    """Waits until the parent is gone, and removes the folder that the command line names."""
    # Ctrl-C and the end of a session are for the program, which may handle them and go on.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent, folder = int(sys.argv[1]), Path(sys.argv[2])
    while os.getppid() == parent and folder.exists():
        time.sleep(_TICK_S)
    if folder.exists():
        remove_folder(folder)


if __name__ == "__main__":
    main()
