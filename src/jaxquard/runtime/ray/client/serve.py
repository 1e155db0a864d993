"""The main function of the client process: it reads commands from the pipe until the other end is closed.

Commands that Ray takes at once are executed in order, as they come. Those that may take a while have a thread each.
When the controller is gone, so is this process, with its private Ray.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.client.message_pipe import MessagePipe
from jaxquard.runtime.ray.client.ray_commands import RayCommands

_SLOW = frozenset({"connect", "list_nodes", "run_on_hosts", "await_reserved"})
_CLOSE_LIMIT_S = 30.0
_TICK_S = 0.5
CLOSE = "close"
"""The command after which the process ends; its reply is that."""


class _Server:
    """Executes commands, and sends replies."""

    def __init__(self, pipe: MessagePipe, commands: RayCommands) -> None:
        self._pipe, self._commands = pipe, commands

    def run(self) -> None:
        """Executes commands until the pipe is closed, or the command to close comes."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                (number, command, args), buffers = self._pipe.receive()
                if command == CLOSE:
                    return
                if command in _SLOW:
                    threading.Thread(target=self._execute, args=(number, command, args), daemon=True).start()
                elif command == "call":
                    self._call(number, args, buffers)
                else:
                    self._execute(number, command, args, *([buffers] if command == "share" else []))
                del args, buffers  # Not held until the next command comes.

    def _execute(self, number: int, command: str, args: Sequence[Any], *buffers: Sequence[Any]) -> None:
        try:
            function = getattr(self._commands, command)
            result = function(*args, buffers=buffers[0]) if buffers else function(*args)
        except Exception as error:
            found = error if isinstance(error, MeshError) else _as_mesh_error(command, error)
            self._reply(number, None, found)
        else:
            self._reply(number, result, None)

    def _call(self, number: int, args: Sequence[Any], buffers: Sequence[Any]) -> None:
        def reply(value: Any, error: Exception | None) -> None:
            payload, *others = value if isinstance(value, list) else [value]
            self._reply(number, payload, error, others)

        try:
            self._commands.call(*args, buffers=buffers, on_reply=reply)
        except Exception as error:
            self._reply(number, None, _as_mesh_error("call", error))

    def _reply(self, number: int | None, result: Any, error: Exception | None, buffers: Sequence[Any] = ()) -> None:
        """Sends a reply, unless nobody waits for one."""
        if number is not None:
            with contextlib.suppress(OSError):  # The controller is gone: the pipe is at its end too.
                self._pipe.send((number, result, error), buffers)


def _as_mesh_error(command: str, error: Exception) -> MeshError:
    lines = str(error).strip().splitlines() or [""]
    return MeshError(f"Ray could not do what was asked ({command}): {type(error).__name__}: {lines[0]}")


def _end_with(parent: int) -> None:
    """Ends this process with its parent: a fork of that may hold the other end of the pipe open."""
    while os.getppid() == parent:
        time.sleep(_TICK_S)
    os._exit(1)  # The folder of a private Ray has a reaper.


def _end_late() -> None:
    time.sleep(_CLOSE_LIMIT_S)
    os._exit(1)


def main() -> None:
    """Serves the pipe whose descriptor the command line names, and then ends."""
    descriptor, parent, script = json.loads(sys.argv[1])
    # Ctrl-C and the end of a session are for the program, which may handle them and go on. Not ignored: what this
    # process starts would ignore them too.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # Ray gives the workers the folder of the script that runs.
    sys.argv[:] = [script or ""]
    if script:
        sys.modules["__main__"].__file__ = script
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    commands = RayCommands()
    pipe = MessagePipe(socket.socket(fileno=descriptor))
    _Server(pipe, commands).run()
    threading.Thread(target=_end_late, daemon=True).start()
    commands.close()
    sys.stderr.flush()
    os._exit(0)  # Ray's exit handler sleeps for half a second.
