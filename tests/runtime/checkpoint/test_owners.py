"""Programs that save to one path: one owner at a time, and at every moment a whole checkpoint."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxquard.errors import CheckpointError, CheckpointOwnedError, StaleOwnerError
from jaxquard.runtime.checkpoint.files import folders, write_pieces
from jaxquard.runtime.checkpoint.files.ownership import claims as claims_module
from jaxquard.runtime.checkpoint.files.ownership import owner as owner_module
from jaxquard.runtime.checkpoint.files.ownership.claims import Claims, OwnedPath
from jaxquard.runtime.checkpoint.files.ownership.owner import is_alive, read_owner, this_process
from jaxquard.runtime.checkpoint.restore import restore
from jaxquard.runtime.checkpoint.save import save
from tests.runtime.checkpoint.listing import names_in
from tests.runtime.checkpoint.subprocesses import PROLOGUE, environment

SIZE = 100_000
MANY = 1_000_000
LIKE = {"x": np.zeros(SIZE)}


def place(folder):
    return OwnedPath(path=folder / "a", folder=folder, prefix=".a.owner-", last_fence=lambda: 0)


@pytest.fixture
def other(tmp_path):
    """Another program in this process: it has claims of its own, and looks dead to nobody."""
    return Claims()


@pytest.fixture
def elsewhere(monkeypatch):
    """All owners seem to be on another host, and leases are short."""
    monkeypatch.setattr(owner_module, "_system", lambda: os.urandom(4).hex())
    monkeypatch.setattr(owner_module, "LEASE_S", 0.5)
    monkeypatch.setattr(owner_module, "HEARTBEAT_S", 0.1)


def start(script):
    return subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + script], env=environment(), stdout=subprocess.PIPE, text=True
    )


def test_a_claim_is_kept_from_save_to_save_and_numbers_the_owners(tmp_path, other):
    first = other.take(place(tmp_path))
    assert other.take(place(tmp_path)) is first
    assert first.fence == 1
    assert read_owner(tmp_path / ".a.owner-1").pid == os.getpid()
    with pytest.raises(CheckpointOwnedError) as caught:
        Claims().take(place(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path / 'a'} belongs to {first.owner}, which is alive. End that program, or save to another path."
    )
    other.give_up(first)
    assert list(tmp_path.iterdir()) == []
    later = Claims().take(OwnedPath(path=tmp_path, folder=tmp_path, prefix=".a.owner-", last_fence=lambda: 1))
    assert later.fence == 2


def test_an_owner_elsewhere_is_dead_without_heartbeat(tmp_path, elsewhere, other):
    first = other.take(place(tmp_path))
    start_s = time.monotonic()
    second = Claims().take(place(tmp_path))
    assert time.monotonic() - start_s >= 0.4
    assert second.fence == 2
    with pytest.raises(StaleOwnerError) as caught:
        other.take(place(tmp_path))
    assert str(caught.value).startswith(
        f"{tmp_path / 'a'} belongs to {second.owner} now (owner 2, after this program as owner 1): this program gave no"
    )
    first.remove()
    assert names_in(tmp_path) == []
    second.check()


def test_an_owner_elsewhere_with_a_heartbeat_is_alive(tmp_path, elsewhere, other, monkeypatch):
    monkeypatch.setattr(owner_module, "LEASE_S", 60)
    monkeypatch.setattr(claims_module, "HEARTBEAT_S", 0.05)
    other.take(place(tmp_path))
    with pytest.raises(CheckpointOwnedError):
        Claims().take(place(tmp_path))


def test_a_process_number_that_is_used_again(tmp_path):
    """A zombie and a process that started later are not the owner."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    file = tmp_path / "x"
    mine = this_process(1, "t")
    start_ticks = owner_module._start_of(child.pid)
    for pid, ticks, expected in [(child.pid, start_ticks, True), (child.pid, start_ticks - 1, False)]:
        owner = owner_module.Owner(fence=1, token="t", host="h", system=mine.system, pid=pid, start=ticks)
        assert is_alive(owner, file, file) is expected
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = owner_module.Owner(fence=1, token="t", host="h", system=mine.system, pid=child.pid, start=start_ticks)
    assert not is_alive(zombie, file, file)
    child.communicate()


def test_a_claim_whose_folder_was_deleted(tmp_path, other):
    claim = other.take(place(tmp_path))
    (tmp_path / ".a.owner-1").unlink()
    claim.check()
    assert read_owner(tmp_path / ".a.owner-1") == claim.owner
    (tmp_path / ".a.owner-1").unlink()
    later = OwnedPath(path=tmp_path, folder=tmp_path, prefix=".a.owner-", last_fence=lambda: 5)
    with pytest.raises(StaleOwnerError, match=r"belongs to another program now \(owner 5, after"):
        type(claim)(place=later, owner=claim.owner).check()


def test_without_hard_links(tmp_path, other, monkeypatch):
    def refuse(*args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert other.take(place(tmp_path)).fence == 1
    with pytest.raises(CheckpointOwnedError):
        Claims().take(place(tmp_path))


def test_a_claim_file_that_is_no_claim(tmp_path, other, monkeypatch):
    (tmp_path / ".a.owner-7").write_text("[" * 10_000)
    monkeypatch.setattr(owner_module, "LEASE_S", 0.1)
    assert other.take(place(tmp_path)).fence == 8


def test_a_stale_save_is_refused_and_replaces_nothing(tmp_path, monkeypatch, caplog):
    """This program was silent while it wrote; another has saved since."""
    path = tmp_path / "a"
    save(path, {"x": np.full(SIZE, 1.0)}).wait()
    original = write_pieces.write_arrays

    def while_another_program_saves(folder, arrays):
        monkeypatch.setattr(write_pieces, "write_arrays", original)
        monkeypatch.setattr(claims_module, "is_alive", lambda *args: False)
        done = Claims().take(place(tmp_path))
        folders.clean(path, done.fence)
        original(folder, arrays)

    monkeypatch.setattr(write_pieces, "write_arrays", while_another_program_saves)
    saving = save(path, {"x": np.full(SIZE, 2.0)})
    with pytest.raises(StaleOwnerError, match=r"Nothing was replaced\. End this program, or save to another path\."):
        saving.wait()
    assert restore(path, like=LIKE)["x"][0] == 1.0
    with pytest.raises(StaleOwnerError):
        save(path, {"x": np.full(SIZE, 3.0)})
    assert names_in(tmp_path) == ["a"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_the_last_rename_of_a_stale_save_fails(tmp_path, monkeypatch, can_exchange):
    """It was frozen between its last look and the rename."""
    path = tmp_path / "a"
    save(path, {"x": np.full(SIZE, 1.0)}).wait()
    if not can_exchange:
        monkeypatch.setattr(folders, "_exchange", lambda *args: False)
    folder = folders.make_unfinished(path, "mine", fence=1)
    (folder / "jaxquard.json").write_text("{}")
    folders.clean(path, 2)
    with pytest.raises(FileNotFoundError):
        folders.commit(folder, path)
    assert restore(path, like=LIKE)["x"][0] == 1.0
    assert names_in(tmp_path) == ["a"]


def test_files_of_a_later_owner_are_left_alone(tmp_path):
    path = tmp_path / "a"
    mine, later = (folders.make_unfinished(path, "x", fence=fence) for fence in (7, 8))
    assert not mine.exists(), "the later one has removed it"
    folders.clean(path, 7)
    assert later.exists()


SAVER = """
import sys
from jaxquard.errors import CheckpointOwnedError
print("ready", flush=True)
number = 0
while True:
    number += 1
    try:
        save({path!r}, {{"x": np.full({size}, float({first} + number))}}).wait()
        if number == 1: print("saved", flush=True)
    except CheckpointOwnedError:
        if number == 1: print("refused", flush=True)
"""


@pytest.mark.slow
def test_two_programs_save_while_a_third_reads(tmp_path):
    """One is the owner until it is killed, then the other: there is a whole checkpoint at every read."""
    path = tmp_path / "a"
    save_once = f"save({str(path)!r}, {{'x': np.full({SIZE}, 0.0)}}).wait()"
    with start(save_once) as first:
        assert first.wait(240) == 0
    savers = [start(SAVER.format(path=str(path), size=SIZE, first=MANY * number)) for number in (1, 2)]
    try:
        said = sorted(saver.stdout.readline() + saver.stdout.readline() for saver in savers)
        assert said == ["ready\nrefused\n", "ready\nsaved\n"]
        (owner,) = (saver for saver in savers if saver.pid == _owner_pid(tmp_path))
        (waiting,) = (saver for saver in savers if saver is not owner)
        seen = [_read_whole(path) for _ in range(25)]
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        deadline_s = time.monotonic() + 60
        while len({value // MANY for value in seen} - {0}) < 2:
            seen.append(_read_whole(path))
            assert time.monotonic() < deadline_s
        assert _owner_pid(tmp_path) == waiting.pid
        seen += [_read_whole(path) for _ in range(10)]
        assert len(set(seen)) > 3
    finally:
        for saver in savers:
            saver.kill()
            saver.communicate()


def _read_whole(path):
    values = set(restore(path, like=LIKE)["x"].tolist())
    assert len(values) == 1
    return values.pop()


def _owner_pid(folder):
    for name in os.listdir(folder):
        owner = read_owner(folder / name) if name.startswith(".a.owner-") else None
        if owner is not None:
            return owner.pid
    return None


def test_a_path_in_a_file_system_of_the_kernel():
    with pytest.raises(CheckpointError) as caught:
        save("/proc/a", LIKE)
    assert str(caught.value).startswith(
        "cannot save to /proc/a: no folder can be made there, as in a file system of the"
    )


@pytest.mark.parametrize(
    ("number", "reason"),
    [(13, "this user may not write there"), (30, "the file system is read-only"), (28, "the disk is full")],
)
def test_reasons_by_number(tmp_path, monkeypatch, number, reason):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path / "a" / "b", LIKE)
    assert str(caught.value) == (
        f"cannot save to {tmp_path / 'a' / 'b'}: {reason} ({os.strerror(number)}). Save to a disk that can be written."
    )


def test_a_process_that_proc_does_not_show_is_alive(tmp_path, monkeypatch):
    """As of another user, where /proc is mounted with hidepid."""
    owner = dataclasses.replace(this_process(1, "a"), pid=2**22 + 1)  # No process has so large a number.
    for error, expected in ((PermissionError, True), (ProcessLookupError, False)):

        def kill(pid, number, error=error):
            raise error

        monkeypatch.setattr(os, "kill", kill)
        assert is_alive(owner, tmp_path, tmp_path) is expected
