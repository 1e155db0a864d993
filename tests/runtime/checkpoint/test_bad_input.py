"""Everything that can be wrong with a state, a path or a disk: one clear line, and nothing half done."""

import errno
import importlib.util
import json
import os
import socket

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import CheckpointError, DeletedArrayError, TaskFailed
from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.checkpoint import save as save_module
from jaxquard.runtime.checkpoint.array_store import store_to_read
from jaxquard.runtime.checkpoint.files import disk, folders, write_pieces
from jaxquard.runtime.checkpoint.leaves import Leaf
from jaxquard.runtime.checkpoint.restore import restore
from jaxquard.runtime.checkpoint.save import save
from jaxquard.runtime.remote_array import RemoteArray, RemotePart
from jaxquard.runtime.result_cell import ResultCell
from tests.runtime.checkpoint.damage import write_signed
from tests.runtime.checkpoint.listing import names_in

HOST = socket.gethostname()
STATE = {"a": np.ones((2, 3), np.float32), "b": {"c": np.arange(4)}}


@pytest.fixture
def saved(tmp_path):
    save(tmp_path / "ok", STATE).wait()
    return tmp_path / "ok"


def message(function, *args, error=CheckpointError, **kwargs):
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


# Restoring.


def test_paths_without_a_checkpoint(tmp_path, saved):
    missing = tmp_path / "missing"
    assert message(restore, missing, like=STATE) == (f"there is no checkpoint at {missing}: the path does not exist.")
    (tmp_path / ".missing.saving-123").mkdir()
    assert message(restore, missing, like=STATE).endswith("A save to it was started and never finished.")
    (tmp_path / "empty").mkdir()
    assert message(restore, tmp_path / "empty", like=STATE) == (
        f"{tmp_path / 'empty'} is not a whole checkpoint of jaxquard: it has no jaxquard.json. Give a path that "
        "jq.save has written."
    )
    assert message(restore, "gs://bucket/a", like=STATE) == (
        "path='gs://bucket/a' must be a folder of a file system that all hosts have mounted."
    )


def test_another_state(saved):
    like = {"a": np.ones((2, 4), np.float32), "b": {"c": np.arange(4.0)}, "d": jnp.ones(())}
    assert message(restore, saved, like=like) == (
        f"checkpoint {saved} is of another state: ['d'] is missing in it; ['a'] is float32[2,3] in it and "
        "float32[2,4] in `like`; ['b']['c'] is int64[4] in it and float64[4] in `like`. Pass a `like` with the leaves "
        "that were saved."
    )
    assert "['b']['c'] is only in it." in message(restore, saved, like={"a": STATE["a"]})
    many = {**STATE, **{f"x{number}": 0 for number in range(42)}}
    assert "['x12'] is missing in it; and 37 more. Pass" in message(restore, saved, like=many)
    assert "['b']['c'] is int64[4] in it and int64[] in" in message(restore, saved, like={**STATE, "b": {"c": 1}})
    key = jax.random.key(0)
    assert "int64[4] in it and key<fry>[] in" in message(restore, saved, like={**STATE, "b": {"c": key}})


def test_a_like_that_is_no_state(saved):
    assert message(restore, saved, like={**STATE, "b": {"c": "text"}}) == (
        "like['b']['c'] is 'text' of type str, but a checkpoint holds arrays and numbers. Leave it out of the state."
    )


def test_damaged_checkpoints(saved):
    manifest = saved / "jaxquard.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"schema": 3}))
    assert message(restore, saved, like=STATE) == (
        f"{saved} has schema 3 of jaxquard.json, but this jaxquard knows 2. Update jaxquard."
    )
    for text in ("{", "[]", '{"schema": 1}', '{"schema": 1, "id": "a", "leaves": [{}]}'):
        manifest.write_text(text)
        assert message(restore, saved, like=STATE).startswith(f"jaxquard.json in {saved} is damaged: ")
    content["leaves"][0]["shape"] = [1, 3]
    content["leaves"][0]["pieces"][0]["shape"] = [1, 3]
    write_signed(manifest, content)
    assert message(restore, saved, like={**STATE, "a": np.ones((1, 3), np.float32)}) == (
        f"{saved} cannot be read on {HOST}: ['a'] (controller/p0): it has 24 bytes, not 12. Restore another checkpoint."
    )
    content["leaves"][0]["pieces"] = []
    write_signed(manifest, content)
    assert message(restore, saved, like=STATE) == (
        f"jaxquard.json in {saved} is damaged: the pieces of leaf \"['a']\" do not cover each of its elements exactly "
        "once. Restore another checkpoint."
    )


def test_bytes_that_are_lost(tmp_path, capfd):
    path, state = tmp_path / "a", {f"x{number}": np.full(300, number) for number in range(20)}
    save(path, state).wait()
    for file in (path / "controller").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:-10])
    assert message(restore, path, like=state).startswith(f"{path} cannot be read on {HOST}: ")
    assert capfd.readouterr().err == ""


def test_a_remote_array_that_does_not_say_where_it_was():
    cell = ResultCell(actor=0, buffer=jnp.ones(2))
    array = RemoteArray(parts=(RemotePart(type=ArrayType(dtype="float32", shape=(2,)), copies=(cell,)),))
    assert message(store_to_read, Leaf(path="['w']", value=array)) == (
        "like['w'] does not say which mesh it is on. Pass mesh=."
    )


# Saving.


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        ("text", "'text' of type str"),
        (1 << 70, "1180591620717411303424 of type int"),
        (np.array(["a"]), "array(['a'], dtype='<U1') of type ndarray"),
        (np.ones(1, np.longdouble), "array([1.], dtype=float128) of type ndarray"),
        (np.zeros(1, [("a", int)]), "array([(0,)], dtype=[('a', '<i8')]) of type ndarray"),
        (lambda: 0, ""),
    ],
    ids=["text", "too big", "texts", "long double", "record", "function"],
)
def test_leaves_that_cannot_be_saved(tmp_path, leaf, text):
    found = message(save, tmp_path / "a", {**STATE, "c": leaf})
    assert found.startswith(f"state['c'] is {text}")
    assert found.endswith(", but a checkpoint holds arrays and numbers. Leave it out of the state.")
    assert names_in(tmp_path) == []


def test_two_leaves_of_one_name(tmp_path):
    class Twins:
        def __init__(self, *leaves):
            self.leaves = leaves

    jax.tree_util.register_pytree_with_keys(
        Twins,
        lambda twins: ([(jax.tree_util.GetAttrKey("a"), leaf) for leaf in twins.leaves], None),
        lambda _, leaves: Twins(*leaves),
    )
    assert message(save, tmp_path / "a", Twins(1, 2)) == (
        "two leaves of the state have the path .a; each needs its own. Rename one."
    )


def test_arrays_that_are_gone(tmp_path):
    with jq.RemoteMesh((1,)) as mesh:
        step = mesh.distributed(lambda x: x + 1, donate_argnums=0)
        array = step(jnp.zeros(2))
        step(array)
        text = (
            "state['w'] cannot be saved: it was donated to an earlier step, which has taken its buffers. Save what "
            "that step returned."
        )
        assert message(save, tmp_path / "a", {"w": array}, error=DeletedArrayError) == text
        deleted = jnp.ones(2)
        deleted.delete()
        assert message(save, tmp_path / "a", {"w": deleted}, error=DeletedArrayError) == text

        def explode(x):
            raise ValueError("out of ink")

        lost = mesh.distributed(lambda x: jax.pure_callback(explode, x, x))(jnp.zeros(2))
        assert "out of ink" in message(save, tmp_path / "a", {"w": lost, "x": STATE}, error=TaskFailed)
        assert names_in(tmp_path) == []
        save(tmp_path / "a", {"w": np.ones(2, np.float32)}).wait()
        for like in (lost, array):
            assert restore(tmp_path / "a", like={"w": like}, mesh=mesh)["w"].tolist() == [1, 1]


def test_paths_that_are_taken(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    text = f"{tmp_path / 'full'} exists and is no checkpoint. Save to another path, or remove it first."
    assert message(save, tmp_path / "full", STATE) == text
    assert (tmp_path / "full" / "thesis.tex").exists()
    (tmp_path / "file").write_text("x")
    assert message(save, tmp_path / "file", STATE).endswith(
        "file exists and is no checkpoint. Save to another path, or remove it first."
    )
    assert message(save, tmp_path / "file" / "a", STATE).startswith(f"cannot save to {tmp_path / 'file' / 'a'}: ")
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", STATE).wait()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    save(tmp_path / "link", STATE).wait()
    assert (tmp_path / "link").is_symlink()
    save(tmp_path / "new" / "deep" / "a", STATE).wait()
    restore(tmp_path / "new" / "deep" / "a", like=STATE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x" * 300, "the name is too long for the file system"),
        ("a\0b", "has a null character"),
        ("file/x", "a part of the path is a file, not a folder"),
        (".last.saving-3-ff", "names like this are those of saves under way"),
    ],
)
def test_names_that_no_checkpoint_can_have(tmp_path, name, text):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=text):
        save(f"{tmp_path}/{name}", STATE)
    with pytest.raises(CheckpointError) as caught:
        restore(f"{tmp_path}/{name}", like=STATE)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == ["file"]


def test_a_name_with_a_line_break_leaves_nothing(tmp_path):
    (tmp_path / ".a\nb.saving-1-ff").mkdir()
    save(tmp_path / "a\nb", STATE).wait()
    assert not (tmp_path / ".a\nb.saving-1-ff").exists()


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(saved, monkeypatch):
    def refuse(path="."):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))

    monkeypatch.setattr(folders.os, "listdir", refuse)
    with pytest.raises(CheckpointError, match=r"cannot read .* this user may not read there"):
        jq.Checkpoints(saved.parent).restore(like=STATE)


def test_without_orbax(tmp_path, monkeypatch, saved):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "orbax" in name else find_spec(name))
    text = (
        "checkpoints are written with orbax, which is not installed here. Run: pip install "
        "'jaxquard[checkpoint]', or '.[checkpoint]' in a checkout."
    )
    assert message(save, tmp_path / "a", STATE) == text
    assert message(restore, saved, like=STATE) == text


def test_a_folder_that_another_host_does_not_see(tmp_path):
    assert message(write_pieces.write_pieces, tmp_path / "here" / ".a.saving-1", "actor1", STATE) == (
        f"{tmp_path / 'here'} is not the same folder on {HOST} as on the controller. Save to a path on a file system "
        "that all hosts share."
    )


def test_a_writer_whose_folder_this_host_does_not_see(saved, monkeypatch):
    monkeypatch.setattr(write_pieces, "_write", lambda *args: None)
    assert message(save(saved, {"a": np.ones(2)}).wait) == (
        f"controller was written into {saved.parent} on another host, but is not seen on this one. Save to a path on a "
        "file system that all hosts share."
    )


def test_a_folder_that_vanishes_while_saving(saved, monkeypatch):
    def vanish(folder, arrays):
        folders.remove(folder.parent)
        raise FileNotFoundError(errno.ENOENT, "No such file")

    monkeypatch.setattr(write_pieces, "write_arrays", vanish)
    found = message(save(saved, {"a": np.ones(2)}).wait)
    assert found.endswith(
        "was removed while it was being written. Do two processes save to the same path? Give each its own."
    )


# Full disks.


def test_a_disk_that_fills_up(saved, monkeypatch):
    def fill_up(folder, arrays):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(write_pieces, "write_arrays", fill_up)
    monkeypatch.setattr(disk, "_free_bytes", lambda folder: 1_500_000)
    assert message(save(saved, {"a": np.ones(100)}).wait) == (
        f"the disk is full on {HOST}: {saved.parent} has 1.5 MB free, and saving takes 800 B there. Nothing was "
        "replaced: the last checkpoint is whole. Make room, or save elsewhere."
    )
    assert names_in(saved.parent) == ["ok"]
    restore(saved, like=STATE)


def test_a_disk_that_is_really_full(small_disk, monkeypatch, capfd):
    save(small_disk / "a", STATE).wait()
    large = {"a": np.random.default_rng(0).normal(size=1 << 20)}
    expected = f"the disk is full on {HOST}: {small_disk} has "
    early = message(save, small_disk / "a", large)
    assert early.startswith(expected)
    assert "free, and saving takes 8.39 MB there." in early
    monkeypatch.setattr(save_module, "check_space", lambda *args: None)
    late = save(small_disk / "a", large)
    assert message(late.wait).startswith(expected)
    assert names_in(small_disk) == ["a"]
    restore(small_disk / "a", like=STATE)
    assert "Traceback" not in capfd.readouterr().err
