"""Runs small programs under the supervisor, in a process of its own, as a user does."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.cli.run_cli import environment

LIMIT_S = 60


class Supervised:
    """A supervisor that runs a program.

    Args:
        folder: the folder in which it runs; the program is written there.
        source: the text of the program.
        words: the program's arguments.
        options: options of `jaxquard run`.
    """

    def __init__(self, folder, source, *words, options=()):
        (folder / "program.py").write_text(source)
        self.folder = folder
        (folder / "tmp").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jaxquard", "run", "--id", "test", "--backoff", "0.01"),
                *map(str, options),
                "program.py",
                *words,
            ],
            cwd=folder,
            env=environment(TMPDIR=str(folder / "tmp")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self):
        """Returns the exit code, stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        finally:
            self.process.kill()
        return self.process.returncode, out, err

    def send(self, number):
        os.kill(self.process.pid, number)

    def read_line(self):
        """Returns its next line; "" if none comes."""
        limit = threading.Timer(LIMIT_S, self.process.kill)
        limit.start()
        line = self.process.stdout.readline().strip()
        limit.cancel()
        return line

    @property
    def log(self):
        return (self.folder / "runs" / "test" / "log.txt").read_text()

    @property
    def temporary(self):
        """Entries that are left in the temporary folder."""
        return os.listdir(self.folder / "tmp")


def run(folder, source, *words, options=()):
    return Supervised(folder, source, *words, options=options).finish()


def answer(out):
    return json.loads(out)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, limit_s=LIMIT_S):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.02)


def end(pid):
    """Ends a process that a failed test has left."""
    if is_running(pid):
        os.kill(pid, signal.SIGKILL)
