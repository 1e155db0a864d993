"""Looks into the processes of a mesh on Ray, and does them harm."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxquard.runtime.ray.client.import_ray import import_ray


def activity(mesh: Any, actor: int, rank: int = 0) -> str:
    """Returns what a process is doing."""
    return Path(mesh.engine.group.workers[actor][rank].info.activity_path).read_bytes().rstrip(b"\0").decode()


def process_id(mesh: Any, actor: int, rank: int = 0) -> int:
    return mesh.engine.group.workers[actor][rank].info.pid


def kill(mesh: Any, actor: int, rank: int = 0) -> None:
    os.kill(process_id(mesh, actor, rank), signal.SIGKILL)


def freeze(mesh: Any, actor: int, rank: int = 0) -> None:
    os.kill(process_id(mesh, actor, rank), signal.SIGSTOP)


def call_inside(mesh: Any, actor: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Calls a function with the `ActorProcess` as its first argument, in each of the actor's processes."""
    workers = mesh.engine.group.workers[actor]
    pickled = import_ray().cloudpickle.dumps(function)
    return [worker.handle.inspect(pickled, *args).value() for worker in workers]


def client_processes() -> list[Any]:
    """Lists the processes of this one that are connected to Ray for it."""
    import psutil

    def is_client(process: Any) -> bool:
        with contextlib.suppress(psutil.Error):
            return any("ray.client.serve" in word for word in process.cmdline())
        return False

    return [process for process in psutil.Process().children() if is_client(process)]


def name_of(process: Any) -> str:
    """Of a process that `psutil` listed; nothing if it has ended since."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


def wait_until(condition: Callable[[], Any], limit_s: float = 60) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.01)


def wait_for_activity(mesh: Any, actor: int, text: str, limit_s: float = 60) -> None:
    wait_until(lambda: text in activity(mesh, actor), limit_s)
