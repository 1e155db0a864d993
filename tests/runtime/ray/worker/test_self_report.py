"""Files that say what a process does: there while it lives and for a post-mortem, and gone at the next start."""

import os
import subprocess
import sys

from jaxquard.runtime.ray.worker.self_report import ActivityFile

WRITER = """
import sys
from jaxquard.runtime.ray.worker.self_report import ActivityFile
activity = ActivityFile(sys.argv[1])
activity.write("0F3")
print(activity.path, flush=True)
input()
"""


def test_the_file_of_a_killed_process_stays_until_the_next_one_starts(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        path = writer.stdout.readline().strip()
        first = ActivityFile(str(tmp_path))
        assert os.path.exists(path)  # Its writer is alive.
        writer.kill()
    with open(path) as file:
        assert file.read().strip("\0") == "0F3"
    second = ActivityFile(str(tmp_path))
    assert not os.path.exists(path)
    assert sorted(os.listdir(tmp_path)) == sorted(os.path.basename(own.path) for own in (first, second))
    for own in (first, second):
        own.remove()
        own.remove()
        own.write("closing")
    assert not os.listdir(tmp_path)


def test_a_file_that_is_being_made_or_is_something_else_stays(tmp_path):
    (tmp_path / "jaxquard-new.activity").touch()
    (tmp_path / "jaxquard-link.activity").symlink_to(tmp_path / "jaxquard-new.activity")
    (tmp_path / "notes.activity").write_bytes(bytes(256))
    before = set(os.listdir(tmp_path))
    activity = ActivityFile(str(tmp_path))
    activity.remove()
    assert set(os.listdir(tmp_path)) == before
