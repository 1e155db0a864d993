"""A process that dies while it saves: the last whole checkpoint is there, and the next save cleans up."""

import subprocess
import sys

import numpy as np
import pytest

from jaxquard.runtime.checkpoint import save as save_module
from jaxquard.runtime.checkpoint.files import folders
from jaxquard.runtime.checkpoint.files.folders import commit, make_unfinished
from jaxquard.runtime.checkpoint.files.manifest import Manifest
from jaxquard.runtime.checkpoint.restore import restore
from jaxquard.runtime.checkpoint.save import save
from tests.runtime.checkpoint.listing import names_in
from tests.runtime.checkpoint.subprocesses import PROLOGUE, environment
from tests.slow_but_for import slow_but_for

LIKE = {"x": np.zeros(3)}

# Each makes the process die at a point of the second save.
CRASHES = {
    "while writing pieces": "from jaxquard.runtime.checkpoint.files import write_pieces as m; m.sync_tree = die",
    "after the pieces": "from jaxquard.runtime.checkpoint import save as m; m._check_written = die",
    "after the manifest": "from jaxquard.runtime.checkpoint import save as m; m.commit = die",
    "between the renames": """
from pathlib import Path
from jaxquard.runtime.checkpoint.files import folders as m
m._exchange = lambda *args: False
rename = Path.rename
def only_the_first(path, target):
    if ".saving-" in path.name: die()
    return rename(path, target)
Path.rename = only_the_first
""",
    "after the exchange": """
from jaxquard.runtime.checkpoint.files import folders as m
m.remove = die
""",
    "before the old one is deleted": """
from jaxquard.runtime.checkpoint.files import folders as m
sync = m.sync
def die_after(path):
    sync(path); die()
m.sync = die_after
""",
}


# Three instants of a commit, which has a test of its own below, are left to `make test-slow`.
@pytest.mark.parametrize("point", slow_but_for(CRASHES, list(CRASHES)[:3]))
def test_a_crash(tmp_path, point):
    path = tmp_path / "a"
    script = f"""
save({str(path)!r}, {{"x": np.full(3, 1.0)}}).wait()
def die(*args): os._exit(7)
{CRASHES[point]}
save({str(path)!r}, {{"x": np.full(3, 2.0)}}).wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + script], env=environment(), capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (7, "")
    expected = 2.0 if point in ("after the exchange", "before the old one is deleted") else 1.0
    assert restore(path, like=LIKE)["x"].tolist() == [expected] * 3
    assert len(names_in(tmp_path)) == 2, "something is left behind"
    save(path, {"x": np.full(3, 3.0)}).wait()
    assert restore(path, like=LIKE)["x"].tolist() == [3.0] * 3
    assert names_in(tmp_path) == ["a"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_at_every_instant_of_a_commit_one_is_whole(tmp_path, monkeypatch, can_exchange):
    """Every change of the file system is followed by a restore, as if the process had died right after it."""
    path = tmp_path / "a"
    seen = []

    def look(function):
        def and_look(*args, **kwargs):
            result = function(*args, **kwargs)
            (value,) = set(_values(path))
            seen.append(value)
            return result

        return and_look

    for number in (1.0, 2.0):
        save(path, {"x": np.full(3, number)}).wait()
    folder = make_unfinished(path, "new", fence=1)
    monkeypatch.setattr(save_module, "commit", lambda *args: None)
    monkeypatch.setattr(save_module, "make_unfinished", lambda *args, **_: folder)
    save(path, {"x": np.full(3, 3.0)}).wait()
    for owner, name in (
        ("pathlib.Path", "rename"),
        ("pathlib.Path", "unlink"),
        ("os", "unlink"),
        ("os", "rmdir"),
    ):
        module = sys.modules["pathlib"].Path if owner == "pathlib.Path" else sys.modules[owner]
        monkeypatch.setattr(module, name, look(getattr(module, name)))
    exchange = folders._exchange
    monkeypatch.setattr(folders, "_exchange", look(exchange) if can_exchange else lambda *args: False)
    commit(folder, path)
    assert seen[0] == (3.0 if can_exchange else 2.0)
    assert seen[-1] == 3.0
    assert sorted(seen) == seen
    assert len(seen) > 5


def _values(path):
    """Restored by hand, as `restore` is patched too."""
    from jaxquard.runtime.checkpoint.files.folders import find_checkpoint
    from jaxquard.runtime.checkpoint.files.orbax_files import read_arrays

    folder = find_checkpoint(path)
    (leaf,) = Manifest.read(folder).leaves
    (piece,) = leaf.pieces
    return read_arrays(folder / piece.folder, {piece.key: 24})[piece.key].tolist()
