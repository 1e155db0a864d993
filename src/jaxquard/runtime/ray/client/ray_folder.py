"""The folder of a private Ray: sockets, logs and the token. It is gone when the program is, however that ends.

Three things see to that. `close` removes it. If the program dies, its reaper does (see `reaper`). If both are killed,
the next program of this user that starts a Ray does: the owner of a folder holds a lock on a file in it, which the
kernel releases with the owner's death and with nothing else. Under `jaxquard run` the folder is in the temporary folder
of the attempt, which the supervisor removes too.
"""

import contextlib
import fcntl
import itertools
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from jaxquard.runtime.ray.client import reaper
from jaxquard.runtime.supervisor.attempt import RUN_TMPDIR

_PREFIX = "jaxquard-ray-"
_OWNER = "owner"
_LONGEST_RUN = 20
"""In bytes, so that sockets in the folder, below Ray's own long names, have a path of at most 107."""


class RayFolder:
    """Makes a folder for this user alone, with a reaper; `close` removes it, and ends what still runs there.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        while (owned := _make_owned()) is None:  # Another program took it for a stale one before it was locked.
            pass
        self.path, self._owner = owned
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, str(os.getpid()), str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def close(self) -> None:
        """Ends the processes that still run there, and removes it."""
        reaper.remove_folder(self.path)
        self._reaper.kill()
        self._reaper.wait()
        self._owner.close()


def _make_owned() -> tuple[Path, TextIO] | None:
    """Makes a folder, and a file in it that this program locks; None if another program removes it meanwhile."""
    # Ray opens its own directory, inside, to everybody.
    path = _make_in_run() or Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent()))
    owner = open(path / _OWNER, "w")  # noqa: SIM115  (held until `close`)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.fstat(owner.fileno()).st_nlink > 0
    except BlockingIOError:
        is_ours = False
    if is_ours:
        return path, owner
    owner.close()
    return None


def remove_stale_folders() -> None:
    """Removes the folders of programs of this user that are dead, and ends what they left running."""
    for path in Path(_parent() or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # It is another user's, or another program removes it at this moment.
            status = path.lstat()
            if status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode):
                _remove_if_stale(path)


def _remove_if_stale(path: Path) -> None:
    # Without a lock file it is being made at this moment, or not one of these.
    with open(path / _OWNER, "r+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        reaper.remove_folder(path)


def _make_in_run() -> Path | None:
    """Makes a folder in that of an attempt of `jaxquard run`; None if there is no such run, or the path is too long."""
    run = os.environ.get(RUN_TMPDIR, "")
    if not os.path.isabs(run) or len(os.fsencode(run)) > _LONGEST_RUN:
        return None
    for number in itertools.count():
        path = Path(run, f"ray{number}")
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError:  # The attempt is over, or the folder is another user's.
            return None
        return path
    raise AssertionError("unreachable")


def _parent() -> str | None:
    """Returns where folders are made: not the user's temporary directory, as a socket's path has 107 bytes at most."""
    return "/tmp" if Path("/tmp").is_dir() else None
