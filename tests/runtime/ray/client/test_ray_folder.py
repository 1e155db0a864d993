"""Folders of private Rays: gone with their program, removed at the next start if they are not, and never too early."""

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jaxquard.runtime.ray.client import ray_folder, reaper
from jaxquard.runtime.ray.client.ray_folder import RayFolder, remove_stale_folders
from jaxquard.runtime.ray.client.reaper import list_processes
from jaxquard.runtime.supervisor.attempt import RUN_TMPDIR
from tests.runtime.ray.processes import wait_until

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
PROGRAM = """
import sys
from jaxquard.runtime.ray.client import ray_folder, reaper
ray_folder._parent = lambda: sys.argv[1]
folder = ray_folder.RayFolder()
print(folder.path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def parent(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_folder, "_parent", lambda: str(tmp_path))
    return tmp_path


def start_server(folder):
    """A process with the log of a server in a folder, as all of Ray's have."""
    (folder / "logs").mkdir(exist_ok=True)
    with open(folder / "logs" / "raylet.out", "w") as log:
        return subprocess.Popen(SLEEP, stdout=log, stderr=subprocess.DEVNULL)


def test_a_folder_is_removed_with_its_processes(parent):
    folder = RayFolder()
    server = start_server(folder.path)
    wait_until(lambda: list_processes(folder.path) == [server.pid])
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.close()
    assert server.wait(60) == -9
    assert not list(parent.iterdir())


def test_a_program_that_is_killed(parent):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout.readline()
        (folder,) = parent.iterdir()
        server = start_server(folder)
        wait_until(lambda: list_processes(folder) == [server.pid])
        program.kill()
    assert server.wait(60) == -9
    wait_until(lambda: not folder.exists())


def test_only_folders_without_an_owner_are_stale(parent):
    owned, being_made = RayFolder(), parent / "jaxquard-ray-being-made"
    being_made.mkdir()
    stale = parent / "jaxquard-ray-stale"
    stale.mkdir()
    (stale / "owner").touch()
    server, living = start_server(stale), start_server(owned.path)
    wait_until(lambda: list_processes(stale) == [server.pid])
    remove_stale_folders()
    assert server.wait(60) == -9
    assert living.poll() is None
    assert sorted(parent.iterdir()) == sorted([owned.path, being_made])
    owned.close()
    living.wait(60)


def test_a_folder_of_an_attempt_is_in_the_folder_that_the_supervisor_removes(monkeypatch, parent):
    run = Path(tempfile.mkdtemp(prefix="jqr-", dir="/tmp"))
    monkeypatch.setenv(RUN_TMPDIR, str(run))
    try:
        folders = [RayFolder(), RayFolder()]
        assert [folder.path for folder in folders] == [run / "ray0", run / "ray1"]
        assert run.joinpath("ray0").stat().st_mode & 0o777 == 0o700
        # Not longer than without a run: Ray's sockets, and the coordinator's, are below.
        assert len(str(run / "ray10")) <= len("/tmp/jaxquard-ray-12345678")
        for folder in folders:
            folder.close()
        assert not list(run.iterdir())
    finally:
        run.rmdir()
    for unfit in (run, parent / "with a path that is too long", "here"):
        monkeypatch.setenv(RUN_TMPDIR, str(unfit))
        folder = RayFolder()
        assert folder.path.parent == parent
        folder.close()


def test_a_link_to_a_folder_is_left_alone(monkeypatch, parent):
    removed = []
    monkeypatch.setattr(reaper, "remove_folder", removed.append)
    target = parent / "mine"
    target.mkdir()
    (target / "owner").touch()
    (parent / "jaxquard-ray-link").symlink_to(target)
    remove_stale_folders()
    assert removed == []


def test_a_removal_that_is_killed_halfway_can_be_finished(monkeypatch, parent):
    stale = parent / "jaxquard-ray-stale"
    (stale / "r" / "logs").mkdir(parents=True)
    (stale / "owner").touch()
    (stale / "token").touch()
    rmtree = reaper.shutil.rmtree

    def killed_after_the_first(path, **options):
        rmtree(path, **options)
        raise InterruptedError

    monkeypatch.setattr(reaper.shutil, "rmtree", killed_after_the_first)
    remove_stale_folders()
    assert sorted(path.name for path in stale.iterdir()) == ["owner", "token"]
    monkeypatch.setattr(reaper.shutil, "rmtree", rmtree)
    remove_stale_folders()
    assert not stale.exists()


def test_a_folder_that_is_taken_for_a_stale_one_before_it_is_locked(parent, monkeypatch):
    """Another program starts at the same moment, and sees the file without its lock."""
    real, made = fcntl.flock, []

    def lock(file, kind):
        if not made:
            made.append(Path(file.name).parent)
            with open(made[0] / "owner", "r+") as theirs:
                real(theirs, kind)
                reaper.remove_folder(made[0])
        return real(file, kind)

    monkeypatch.setattr(fcntl, "flock", lock)
    folder = RayFolder()
    assert made
    assert folder.path != made[0]
    assert list(parent.iterdir()) == [folder.path]
    folder.close()
